"""The contract's version, MAJOR.MINOR. While MAJOR is 0 it may change freely.

A new optional field, op, feature or hook with a default is MINOR; anything else is MAJOR.
"""

from __future__ import annotations

CONTRACT_VERSION = (0, 1)


def contract_version_text() -> str:
    """The contract's version as `MAJOR.MINOR`."""
    return ".".join(str(part) for part in CONTRACT_VERSION)
