"""Tokens × price: the only multiplication of money. Pure."""
