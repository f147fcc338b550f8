"""The names by which an operator asks for parsers, checked without importing one."""

from __future__ import annotations

from tenon_core.hookspecs import REASONING_PARSERS, TOOL_PARSERS, registrations
from tenon_platforms.errors import ConfigError

AUTO, NONE = "auto", "none"
FLAGS = {TOOL_PARSERS: "--tool-call-parser", REASONING_PARSERS: "--reasoning-parser"}


def check_name(group: str, name: str) -> None:
    """Raise `ConfigError` for a parser that is not there, listing those that are."""
    if name in (AUTO, NONE):
        return
    known = registrations(group)
    if name not in known:
        raise ConfigError(
            f"{FLAGS[group]} is {name!r}: known are {', '.join((AUTO, NONE, *sorted(known)))}",
            remedy=f"pass one of these, or install a plugin that brings it through the entry-point group {group}",
        )
