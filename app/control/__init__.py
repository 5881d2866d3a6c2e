"""The control plane's JSON API: thin views over the services of identity, catalogue, pricing, ledger."""
