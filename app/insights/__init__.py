"""What was used, what it cost, and why: read-only views of usage, requests and the ledger."""
