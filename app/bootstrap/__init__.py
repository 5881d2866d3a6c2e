"""One module per process: the only place where ports meet adapters."""
