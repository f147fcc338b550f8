"""The one constructor of a Jinja environment for chat templates: sandboxed, immutable, without a loader.

Templates come with models, so they are strangers' code. They see what Transformers' chat templates may use, and nothing
that leads out of the sandbox. Only the template worker, a process of limited time and memory, renders them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import Undefined, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Names that a template is given; everything else it names may be set by a request's chat_template_kwargs.
GIVEN_NAMES = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "bos_token",
        "eos_token",
        "unk_token",
        "pad_token",
        "raise_exception",
        "strftime_now",
        "chat_template",
        "tokenize",
        "range",
        "dict",
        "namespace",
        "cycler",
        "joiner",
    }
)
_KEPT_GLOBALS = ("range", "dict", "namespace", "cycler", "joiner")
MAX_STRFTIME = 128


class TemplateRefusedError(TemplateError):
    """What a template raises itself, through `raise_exception`."""


class GenerationExtension(Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's turns for training; here it is its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Denies every private name, and calls of classes beyond those that templates need."""

    intercepted_binops = frozenset({"*", "**"})  # else the compiler itself would compute a stranger's constants

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return not attr.startswith("_") and super().is_safe_attribute(obj, attr, value)

    def is_safe_callable(self, obj: Any) -> bool:
        # Classes could be made instances of, and more; the few that templates need are listed.
        allowed = tuple(self.globals.get(name) for name in _KEPT_GLOBALS)
        return super().is_safe_callable(obj) and (not isinstance(obj, type) or obj in allowed)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"access to {attribute!r:.80} is forbidden")


def make_environment() -> ChatEnvironment:
    """The environment, the same for every route and template."""
    environment = ChatEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationExtension, LoopControlExtension],
        loader=None,
        optimized=False,  # folding constants would run a stranger's arithmetic while compiling
    )
    environment.globals = {name: environment.globals[name] for name in _KEPT_GLOBALS}
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.filters["tojson"] = _tojson
    environment.filters.pop("attr", None)  # reaches attributes by computed names
    return environment


def _raise_exception(message: Any) -> str:
    raise TemplateRefusedError(str(message))


def _strftime_now(pattern: Any) -> str:
    if not isinstance(pattern, str) or len(pattern) > MAX_STRFTIME:
        raise SecurityError("strftime_now takes a short pattern")
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Transformers does it: no HTML escapes, letters beyond ASCII as they are."""
    text: Callable[..., str] = json.dumps
    return text(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
