"""The schema's history: date-named, one head, each step reversible."""
