"""Alerts: which thresholds of which allowances were reached, and the outbox that tells of them."""
