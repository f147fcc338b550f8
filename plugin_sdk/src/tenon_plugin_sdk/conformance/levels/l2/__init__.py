"""Level 2, ops: every op id against float64, one module a kind of op."""
