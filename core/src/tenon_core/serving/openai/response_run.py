"""One response while it runs: its blocks as output items, its state, and the object that clients see at any moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import msgspec

from tenon_core.client.samples import SampleDelta
from tenon_core.engine.messages import Finished, FinishReason, TokenLogprobs
from tenon_platforms.errors import TenonError

from ..blocks import Block, Blocks, Change, Kind
from ..chat import LONG_TEXT, Chat
from ..errors import HttpError, http_error
from ..logprobs import chat_logprobs
from ..response_store import Item, ResponseStore, Stored, as_items
from .response_fields import ResponseFields
from .response_items import new_id

PREFIXES = {Kind.TEXT: "msg", Kind.THOUGHT: "rs", Kind.CALL: "fc"}
ENDED = "completed"
BROKEN_OFF = ("cancelled", "failed")
FAILED_CODE, LIMIT_CODE = "server_error", "rate_limit_exceeded"


class CancelledError(TenonError):
    """The client asked for the end."""


@dataclass(slots=True, kw_only=True)
class Run:
    """label: the id without its prefix. conversation: all items that are input. status: as in the API."""

    id: str
    owner: str
    fields: ResponseFields
    chat: Chat
    store: ResponseStore
    conversation: tuple[Item, ...]
    is_stored: bool
    blocks: Blocks = field(init=False)
    status: str = "in_progress"
    created: int = field(default_factory=lambda: int(time.time()))
    completed: int | None = None
    incomplete: str | None = None
    error: HttpError | None = None
    num_thought: int = 0  # tokens
    is_read_beside: bool = False  # whether a thread reads a long text

    def __post_init__(self) -> None:
        self.blocks = Blocks(prefixes=PREFIXES, label=self.id.partition("_")[2])

    # what the engine says

    async def changes(self, *, interval: int) -> AsyncIterator[list[Change]]:
        """Run to the end: what changes in the output, as it comes. The state is right whatever ends it."""
        try:
            async for deltas in self.chat.work.deltas(interval):
                for _, delta in deltas:
                    changes = await self._take(delta)
                    if changes:
                        yield changes
            await self._count_thought()
        except CancelledError:
            self._end("cancelled")
        except Exception as error:
            self.error = http_error(error)
            self._end("failed")
            raise
        finally:
            self.leave()

    async def finish(self) -> None:
        """Run to the end without telling."""
        async for _ in self.changes(interval=1 if self.fields.has_logprobs else 2**31):
            pass

    async def _take(self, delta: SampleDelta) -> list[Change]:
        if self.fields.has_logprobs or len(delta.text) < LONG_TEXT:
            changes, reason = self._read(delta)
        else:
            self.is_read_beside = True
            changes, reason = await asyncio.to_thread(self._read, delta)
            self.is_read_beside = False
        if reason is not None:
            changes += self.blocks.end()
            is_cut = reason == "length"
            self.incomplete = "max_output_tokens" if is_cut else None
            await self._count_thought()
            self._end("incomplete" if is_cut else ENDED)
        return changes

    def _read(self, delta: SampleDelta) -> tuple[list[Change], str | None]:
        """Token by token where each has a log-probability, which belongs to the block of its text."""
        reading, text, changes = self.chat.reading, delta.text, []
        if self.fields.has_logprobs:
            for part, position in zip_longest(delta.parts, delta.logprobs):
                events, _ = reading.events(delta.index, part or "", None)
                if position is not None and not part and position.token_id in self.silent_ids:
                    position = None
                changes += self.blocks.take(events, part or "", position)
            text = ""
        events, reason = reading.events(delta.index, text, delta.finish_reason)
        return changes + self.blocks.take(events), reason

    @property
    def silent_ids(self) -> frozenset[int]:
        """Tokens that are in no text, unlike those that have none as they are the beginning of a character."""
        vocabulary = self.chat.services.vocabulary
        return frozenset() if vocabulary is None else vocabulary.special_ids

    @property
    def _thought(self) -> str:
        return "".join(one.text for one in self.blocks.blocks if one.kind is Kind.THOUGHT)

    async def _count_thought(self) -> None:
        """The tokens of what was thought: as many as its text has."""
        text, tokenizer = self._thought, self.chat.services.tokenizer
        if text and tokenizer is not None and not self.num_thought:
            encode = partial(tokenizer.encode, text, add_special_tokens=False)
            self.num_thought = len(await tokenizer.beside(encode, num_unbounded=0))

    def _end(self, status: str) -> None:
        if self.status != "in_progress":
            return
        try:
            if self.is_stored and status in BROKEN_OFF:
                self._gather()
        finally:  # whatever a parser makes of half an answer
            self.status, self.completed = status, int(time.time())
            if self.is_stored and self.store.get(self.owner, self.id) is not None:
                self.is_stored = self.store.put(self.owner, self.stored())

    def _gather(self) -> None:
        """Read what came and was not told, as nobody listened, and count what was thought.

        All others wait meanwhile: of a text or a thought longer than `LONG_TEXT` only the beginning is looked at.
        """
        is_untold = not self.fields.stream and not self.is_read_beside
        for sample in self.chat.request.samples if is_untold else ():
            if not sample.is_finished:
                sample.finish(Finished(key=sample.key, reason=FinishReason.ABORT))
            elif not sample.num_untold:
                continue
            delta = sample.take_delta()
            self._read(replace(delta, text=delta.text[:LONG_TEXT]))
        text, tokenizer = self._thought[:LONG_TEXT], self.chat.services.tokenizer
        if text and tokenizer is not None and not self.num_thought:
            self.num_thought = len(tokenizer.encode(text, add_special_tokens=False))

    def cancel(self) -> None:
        """End it where it stands."""
        self.chat.work.stop(CancelledError("the response was cancelled"))
        self._end("cancelled")

    def expire(self, error: TenonError) -> None:
        """Let it fail where it stands, and say so."""
        self.chat.work.stop(error)

    def leave(self) -> None:
        """End what still runs: the client went away, if this is not the end."""
        self.chat.work.abort()
        self._end("cancelled")

    # what clients see

    def begin_storing(self) -> None:
        """Be found by id from now on."""
        self.is_stored = self.is_stored and self.store.put(self.owner, self.stored())

    def stored(self) -> Stored:
        """As it is kept."""
        runs = self.status == "in_progress"
        output = () if runs else as_items(self.output())
        return Stored(
            id=self.id,
            items=(*self.conversation, *output),
            num_input=len(self.conversation),
            live=self if runs else None,
            body=b"" if runs else msgspec.json.encode(self.response()),
            is_complete=self.status in (ENDED, "incomplete"),
        )

    def output(self) -> list[dict[str, Any]]:
        """The items."""
        return [self.item(one) for one in self.blocks.blocks]

    def item(self, block: Block) -> dict[str, Any]:
        """One block as an item, as far as it has come."""
        is_broken = self.incomplete is not None or self.status in BROKEN_OFF
        if block is self.blocks.blocks[-1] and is_broken:
            status = "incomplete"
        else:
            status = ENDED if block.is_ended else "in_progress"
        found: dict[str, Any] = {"id": block.id, "type": "", "status": status}
        if block.kind is Kind.CALL:
            return found | {
                "type": "function_call", "call_id": block.call_id, "name": block.name, "arguments": block.text,
            }  # fmt: skip
        if block.kind is Kind.THOUGHT:
            content = [self.part(block)] if block.parts else []
            return found | {"type": "reasoning", "summary": [], "content": content, "encrypted_content": None}
        return found | {"type": "message", "role": "assistant", "content": [self.part(block)] if block.parts else []}

    def part(self, block: Block) -> dict[str, Any]:
        """The one part of a message or a thought."""
        if block.kind is Kind.THOUGHT:
            return {"type": "reasoning_text", "text": block.text}
        return {
            "type": "output_text", "text": block.text, "annotations": [], "logprobs": self.logprobs(block.logprobs),
        }  # fmt: skip

    def logprobs(self, positions: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
        """Log-probabilities of a text's tokens."""
        vocabulary = self.chat.services.vocabulary
        if not positions or vocabulary is None:
            return []
        found: list[dict[str, Any]] = chat_logprobs(positions, vocabulary, self.fields.top_logprobs or 0)["content"]
        return found

    def response(self) -> dict[str, Any]:
        """The response object."""
        fields, chat = self.fields, self.chat.fields
        reasoning = fields.reasoning
        text = fields.text.model_dump(by_alias=True, exclude_none=True) if fields.text is not None else {}
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": self.completed if self.status == ENDED else None,
            "status": self.status,
            "background": bool(fields.background),
            "error": None if self.error is None else failure(self.error),
            "incomplete_details": None if self.incomplete is None else {"reason": self.incomplete},
            "instructions": fields.instructions,
            "max_output_tokens": fields.max_output_tokens,
            "max_tool_calls": fields.max_tool_calls,
            "model": self.chat.head.model,
            "output": self.output(),
            "parallel_tool_calls": fields.parallel_tool_calls is not False,
            "previous_response_id": fields.previous_response_id,
            "prompt_cache_key": fields.prompt_cache_key,
            "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
            "safety_identifier": fields.safety_identifier,
            "service_tier": "default",
            "store": self.is_stored,
            "temperature": 1.0 if chat.temperature is None else chat.temperature,
            "text": {"format": {"type": "text"}, **text},
            "tool_choice": "auto" if fields.tool_choice is None else fields.tool_choice,
            "tools": [{"strict": None, "parameters": None, **one} for one in fields.tools or ()],
            "top_logprobs": fields.top_logprobs or 0,
            "top_p": 1.0 if chat.top_p is None else chat.top_p,
            "truncation": "disabled",
            "usage": None if self.status in ("in_progress", "failed") else self.usage(),
            "user": fields.user,
            "metadata": fields.metadata or {},
        }

    def usage(self) -> dict[str, Any]:
        """Counts of tokens."""
        usage = self.chat.usage()
        num_output = usage["completion_tokens"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": num_output,
            "output_tokens_details": {"reasoning_tokens": min(self.num_thought, num_output)},
            "total_tokens": usage["total_tokens"],
        }


def failure(error: HttpError) -> dict[str, Any]:
    """An error within a response."""
    return {"code": LIMIT_CODE if error.status == 429 else FAILED_CODE, "message": error.message}


def conversation_of(earlier: Iterable[Item], items: Sequence[dict[str, Any]]) -> tuple[Item, ...]:
    """All that is input: what came before and what came with this request, each item with an id of its own."""
    found = dict(earlier)
    for one in items:
        kept = one if one["id"] not in found else {**one, "id": new_id(one["type"])}
        found.update(as_items([kept]))
    return tuple(found.items())
