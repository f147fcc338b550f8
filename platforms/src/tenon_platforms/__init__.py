"""The Tenon contract. Importing this package imports neither torch nor a plugin."""
