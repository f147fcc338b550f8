"""Mistral's calls: a JSON list behind one mark, or, since the eleventh tokenizer, a mark, a name and arguments a call.

Source: the `mistral-common` library's instruct tokenizers (v3, v7: `[TOOL_CALLS] [{"name": ..., "arguments": ...}]`;
v11, v13: `[TOOL_CALLS]name[ARGS]{...}`, with `[CALL_ID]id` before the arguments in v11) and the chat template of
mistralai/Mistral-7B-Instruct-v0.3, which wants ids of nine letters and digits.
"""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass, field

from ..formats.base import ToolFormat
from ..formats.header_calls import HeaderCalls
from ..formats.json_calls import JsonCalls
from ..reader import Steps
from ..scan import Scan

MARK, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_LETTERS = string.ascii_letters + string.digits


def new_id() -> str:
    """Nine letters and digits."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))


def header(text: str) -> tuple[str, str | None]:
    """(name, id or None) of `name` or `name[CALL_ID]id`."""
    name, _, identity = text.partition(CALL_ID)
    return name.strip(), identity.strip() or None


@dataclass(frozen=True, slots=True, kw_only=True)
class MistralCalls(ToolFormat):
    """A list where a bracket comes, else names with arguments."""

    listed: JsonCalls = field(default_factory=lambda: JsonCalls(openers=(MARK,)))
    named: HeaderCalls = field(
        default_factory=lambda: HeaderCalls(openers=(MARK,), name_ends=(ARGUMENTS, "{"), header=header)
    )
    call_id: str = CALL_ID

    def parse(self, scan: Scan, opener: str) -> Steps[None]:
        yield from scan.space()
        letter = yield from scan.peek()
        if letter and letter in "[{":
            yield from self.listed.parse(scan, opener)
        else:
            yield from self.named.parse(scan, opener)


MISTRAL = MistralCalls(openers=(MARK,), new_id=new_id, signs=((MARK,), ("[AVAILABLE_TOOLS]",)))
