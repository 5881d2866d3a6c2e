"""Views by resource: parse, call a service, present."""
