"""Double entry: accounts, balanced transactions, wallets and grants. History only grows."""
