"""A platform as it was written for contract 0.1."""
