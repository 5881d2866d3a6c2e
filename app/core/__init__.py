"""The floor: ids, money, clock, errors, settings, logging. It imports nothing of the house."""
