"""One message while it is written: its blocks, why it ended, and the message object."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tenon_core.client.samples import SampleDelta

from ..blocks import Block, Blocks, Change, Kind
from ..chat import LONG_TEXT, Chat

PREFIXES = {Kind.TEXT: "text", Kind.THOUGHT: "thinking", Kind.CALL: "toolu"}


@dataclass(slots=True, kw_only=True)
class MessageRun:
    """limit: `max_tokens` as the client gave it, which may lie beyond the context's end."""

    call: Chat
    limit: int
    blocks: Blocks = field(init=False)
    reason: str | None = None
    stop_sequence: str | None = None

    def __post_init__(self) -> None:
        self.blocks = Blocks(prefixes=PREFIXES, label=self.call.head.id)

    async def changes(self, interval: int) -> AsyncIterator[list[Change]]:
        """Run to the end: what changes in the blocks, as it comes."""
        try:
            async for deltas in self.call.work.deltas(interval):
                for _, delta in deltas:
                    is_long = len(delta.text) > LONG_TEXT
                    changes = await asyncio.to_thread(self._take, delta) if is_long else self._take(delta)
                    if changes:
                        yield changes
        finally:
            self.call.work.abort()

    async def finish(self) -> None:
        """Run to the end without telling."""
        async for _ in self.changes(2**31):
            pass

    def _take(self, delta: SampleDelta) -> list[Change]:
        events, reason = self.call.reading.events(delta.index, delta.text, delta.finish_reason)
        changes = self.blocks.take(events)
        if reason is not None:
            changes += self.blocks.end()
            self.reason = self._reason(reason, delta.stop_reason)
            self.stop_sequence = delta.stop_reason if isinstance(delta.stop_reason, str) else None
        return changes

    def _reason(self, reason: str, stop: int | str | None) -> str:
        if reason == "length":
            num_output = sum(len(one.token_ids) for one in self.call.request.output.outputs)
            return "max_tokens" if num_output >= self.limit else "model_context_window_exceeded"
        if isinstance(stop, str):
            return "stop_sequence"
        return "tool_use" if reason == "tool_calls" else "end_turn"

    def message(self) -> dict[str, Any]:
        """The message as far as it has come. A call that broke off is left out: nobody shall act on half of one."""
        contents = [content_of(one) for one in self.blocks.blocks]
        return {
            "id": self.call.head.id,
            "type": "message",
            "role": "assistant",
            "model": self.call.head.model,
            "content": [one for one in contents if one is not None],
            "stop_reason": self.reason,
            "stop_sequence": self.stop_sequence,
            "usage": self.usage(),
        }

    def usage(self) -> dict[str, Any]:
        """Counts of tokens; of the prompt those that were not found in the prefix cache, and those that were."""
        usage = self.call.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
            "service_tier": "standard",
        }


def content_of(block: Block) -> dict[str, Any] | None:
    """A block that has ended, as content; None for a call whose arguments are no object."""
    if block.kind is Kind.TEXT:
        return {"type": "text", "text": block.text, "citations": None}
    if block.kind is Kind.THOUGHT:
        return {"type": "thinking", "thinking": block.text, "signature": signature(block.text)}
    given = None
    with suppress(ValueError, RecursionError):
        given = json.loads(block.text)
    if not isinstance(given, dict):
        return None
    return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": given}


def signature(text: str) -> str:
    """What clients expect beside a thought. A check sum: what they send back is not held against it."""
    return base64.b64encode(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()).decode()
