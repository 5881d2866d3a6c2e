"""The `steelyard` command: the same verbs for every noun, tables for people, JSON for programs."""
