"""Starts logging for a command: the level the operator gave, or the command's own."""

from __future__ import annotations

import click

from tenon_core.observability.log import setup_logging


def start_logging(default: str = "warning") -> None:
    """To be called first in a command. `tenon --log-level` and `--debug` win over `default`."""
    context = click.get_current_context(silent=True)
    options = (context.find_root().obj if context is not None else None) or {}
    level = options.get("log_level") or ("debug" if options.get("debug") else default)
    setup_logging(level, format=options.get("log_format") or "text")
