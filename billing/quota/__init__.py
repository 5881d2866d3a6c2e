"""Allowances and leases: hard limits over any number of processes without a round trip a request."""
