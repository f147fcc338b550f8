"""Parsers by name, ours and third parties' alike, and the one that suits a chat template.

Entry-point groups `tenon.tool_parsers` and `tenon.reasoning_parsers`: name -> `ToolFormat` or `ReasoningFormat`, or a
zero-argument function that returns one. `Harmony` is both. Listing names imports nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tenon_core.hookspecs import REASONING_PARSERS, TOOL_PARSERS, Registration, load_registered, registrations
from tenon_platforms.errors import ConfigError, PluginError

from .formats.base import Format, ReasoningFormat, ToolFormat
from .formats.harmony import Harmony
from .names import AUTO, FLAGS, NONE

LOG = logging.getLogger(__name__)
KINDS: dict[str, tuple[type[Format], ...]] = {
    TOOL_PARSERS: (ToolFormat,),
    REASONING_PARSERS: (ReasoningFormat, Harmony),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsers:
    """What a server reads answers with. tool_name, reasoning_name: for the log; empty where there is none."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    tool_name: str = ""
    reasoning_name: str = ""

    @property
    def channels(self) -> Harmony | None:
        """The format that is both, where the model writes one."""
        return self.tools if isinstance(self.tools, Harmony) else None


def load_parsers(tool_name: str, reasoning_name: str, template: str | None) -> Parsers:
    """The parsers of these names; `auto` takes what suits the chat template, `none` takes none.

    Raises `ConfigError` for a reasoning parser that reads the calls too and another one for these.
    """
    asked = tool_name
    tool_name, tools = _chosen(TOOL_PARSERS, tool_name, template)
    reasoning_name, reasoning = _chosen(REASONING_PARSERS, reasoning_name, template)
    if isinstance(reasoning, Harmony):  # one format for both: whoever asks for a half gets it read as a whole
        if asked not in (AUTO, NONE) and tools is not reasoning:
            raise ConfigError(
                f"--reasoning-parser {reasoning_name} reads channels, tool calls among them, and --tool-call-parser is"
                f" {asked!r}",
                remedy="leave --tool-call-parser out, or pass openai",
            )
        tool_name, tools, reasoning = tool_name or reasoning_name, reasoning, None
    assert tools is None or isinstance(tools, ToolFormat)
    assert reasoning is None or isinstance(reasoning, ReasoningFormat)
    return Parsers(tools=tools, reasoning=reasoning, tool_name=tool_name, reasoning_name=reasoning_name)


def _chosen(group: str, name: str, template: str | None) -> tuple[str, Format | None]:
    if name == NONE:
        return "", None
    if name != AUTO:
        return name, _format(group, name, load_registered(group, name))
    best, found, found_name = 0, None, ""
    for registration in sorted(registrations(group).values(), key=lambda one: one.name):
        one = _loaded(group, registration) if template is not None else None
        fit = 0 if one is None or template is None else one.fit(template)
        if fit > best:
            best, found, found_name = fit, one, registration.name
    return found_name, found


def _loaded(group: str, registration: Registration) -> Format | None:
    """A parser to be looked at; one that nobody asked for and that does not load stops no server."""
    try:
        return _format(group, registration.name, registration.load())
    except PluginError as error:
        LOG.warning("%s auto passes over %s: %s", FLAGS[group], registration.name, error.message)
        return None


def _format(group: str, name: str, found: object) -> Format:
    one = found() if callable(found) and not isinstance(found, Format) else found
    if not isinstance(one, KINDS[group]):
        kinds = " or ".join(kind.__name__ for kind in KINDS[group])
        raise PluginError(f"{group} entry {name!r} is {one!r:.200}: expected a {kinds}")
    return one
