"""Proofs that what is told twice is told the same: engine counters = events = roll-ups = ledger = wallets."""
