"""Processes and faces: everything that a person or a client touches."""
