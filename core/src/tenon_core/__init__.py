"""Tenon's engine. Importing this package imports neither torch nor a web framework."""
