"""One module a level: its checks."""
