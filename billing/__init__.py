"""Money: knows nothing of HTTP or engines."""
