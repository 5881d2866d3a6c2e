"""Which engine, when: knows nothing of money or tenants' names (a fairness key is enough)."""
