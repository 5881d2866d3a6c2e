"""An engine stand-in that speaks vLLM's HTTP, for tests and benchmarks only: it serves no model."""
