"""The gateway's durable local journal, and the settler that posts it to PostgreSQL exactly once."""
