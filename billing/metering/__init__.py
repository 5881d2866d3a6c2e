"""What was consumed: usage, its sources and outcomes, and how engines report it. Pure."""
