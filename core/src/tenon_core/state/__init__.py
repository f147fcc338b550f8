"""The row table: every running sequence as one line of a few arrays."""
