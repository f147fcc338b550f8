"""Writes MATRIX.md anew: every planted bug, the check that found it, in how much processor time, and what it said.

Run as `PYTHONPATH=plugin_sdk/tests python plugin_sdk/tests/mutations/write_table.py`; with levels or
names behind it (`L4 "noise of torch"`) only these bugs are run and the other rows stay.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from mutations.test_mutations import REGISTRY, finding

HEAD = """# Planted bugs and the checks that find them

Written by `write_table.py`; each bug runs only the check that should find it.

| bug | what it is | level | found by | seconds | it says |
|---|---|---|---|---:|---|
"""
LONGEST = 160
TABLE = Path(__file__).with_name("MATRIX.md")


def main(only: list[str]) -> None:
    """Run all, or some by level or name, and write the table."""
    torch.set_num_threads(1)
    kept = {row.split(" | ")[0].removeprefix("| "): row for row in TABLE.read_text().splitlines() if row[:2] == "| "}
    lines, num_found = [], 0
    for mutation in REGISTRY.held.values():
        if only and not {mutation.level, mutation.name} & set(only) and mutation.name in kept:
            lines.append(kept[mutation.name])
            num_found += "NOT FOUND" not in kept[mutation.name]
            continue
        subject = mutation.subject()
        begin = time.process_time()
        said = finding(subject, mutation.check)
        seconds = time.process_time() - begin
        subject.close()
        num_found += said is not None
        text = "NOT FOUND" if said is None else said.splitlines()[0].split(": ", 1)[-1][:LONGEST].replace("|", "/")
        lines.append(
            f"| {mutation.name} | {mutation.what} | {mutation.level} | `{mutation.check}` | {seconds:.2f} | {text} |"
        )
    tail = f"\n{num_found} of {len(lines)} found.\n"
    TABLE.write_text(HEAD + "\n".join(lines) + "\n" + tail)


if __name__ == "__main__":
    main(sys.argv[1:])
