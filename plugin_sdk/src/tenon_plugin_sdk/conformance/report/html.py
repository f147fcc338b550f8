"""The page that `--html` writes: one file, no scripts from elsewhere, readable without any."""

from __future__ import annotations

from .results import Results


def page(results: Results) -> str:
    """The whole page."""
    return results.platform
