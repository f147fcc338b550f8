"""The command line, `tenon`. Importing this package, and asking for help, imports neither torch nor a plugin."""
