"""`tenon bench`: measurements, one file each. They print a table, and with `--json` what other programs read."""
