"""A response that breaks off: what is read of what came, how much of it, and the state that it ends in."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tenon_core.client.samples import SampleDelta
from tenon_core.serving.chat import LONG_TEXT
from tenon_core.serving.openai.response_fields import ResponseFields
from tenon_core.serving.openai.response_run import CancelledError, Run
from tenon_core.serving.parsers.events import REASONING, TextDelta
from tenon_core.serving.response_store import ResponseStore

pytestmark = pytest.mark.unit


class BrokenParserError(Exception):
    pass


def run_of(text: str, *, is_stored: bool = True, breaks: bool = False, stop: BaseException | None = None) -> Any:
    """A run that has come to `text`, all of it a thought, a token a letter; `chat.read`: what was read of it."""
    read: list[str] = []

    def events(index: int, text: str, reason: str | None) -> Any:
        read.append(text)
        if breaks:
            raise BrokenParserError
        return [TextDelta(REASONING, text)], reason

    async def deltas(interval: int) -> Any:
        if stop is not None:
            raise stop
        yield [(None, delta)]

    delta = SampleDelta(
        index=0, text=text, parts=[], token_ids=[], logprobs=[], finish_reason="abort", stop_reason=None
    )
    sample = SimpleNamespace(is_finished=False, key=0, finish=lambda end: None, take_delta=lambda: delta)
    usage = {
        "completion_tokens": 10**6,
        "prompt_tokens": 1,
        "total_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    chat: Any = SimpleNamespace(
        read=read,
        reading=SimpleNamespace(events=events),
        request=SimpleNamespace(samples=[sample]),
        work=SimpleNamespace(stop=lambda error: None, abort=lambda: None, deltas=deltas),
        services=SimpleNamespace(
            vocabulary=None, tokenizer=SimpleNamespace(encode=lambda text, add_special_tokens: list(text))
        ),
        fields=SimpleNamespace(temperature=None, top_p=None),
        head=SimpleNamespace(model="m"),
        usage=lambda: usage,
    )  # fmt: skip
    store = ResponseStore(max_entries=4, max_bytes=2**20)
    run = Run(
        id="resp_1", owner="o", fields=ResponseFields.model_validate({"input": "x"}), chat=chat, store=store,
        conversation=(), is_stored=is_stored,
    )  # fmt: skip
    run.begin_storing()
    return run


def test_what_came_is_shown_and_its_thoughts_are_counted() -> None:
    run = run_of("thought")
    run.cancel()
    stored = run.store.get("o", "resp_1").response()
    assert stored["status"] == "cancelled" and stored["output"][0]["content"][0]["text"] == "thought"
    assert stored["usage"]["output_tokens_details"] == {"reasoning_tokens": 7}


def test_of_a_long_text_the_beginning_is_read() -> None:
    """It is read where all others wait for it."""
    run = run_of("x" * (LONG_TEXT + 5))
    run.cancel()
    assert [len(text) for text in run.chat.read] == [LONG_TEXT] and run.num_thought == LONG_TEXT


def test_nothing_is_read_for_nobody() -> None:
    run = run_of("thought", is_stored=False)
    run.leave()
    assert run.status == "cancelled" and not run.chat.read and not run.num_thought


@pytest.mark.parametrize(("stop", "status"), [(None, "failed"), (CancelledError("no"), "cancelled")])
def test_a_parser_that_breaks_leaves_no_response_running(stop: BaseException | None, status: str) -> None:
    run = run_of("thought", breaks=True, stop=stop)
    with pytest.raises(BrokenParserError):
        asyncio.run(run.finish())
    stored = run.store.get("o", "resp_1")
    assert run.status == status and stored.live is None and stored.response()["status"] == status


def test_a_broken_parser_does_not_keep_a_response_from_being_cancelled() -> None:
    run = run_of("thought", breaks=True)
    with pytest.raises(BrokenParserError):
        run.cancel()
    assert run.status == "cancelled" and run.store.get("o", "resp_1").live is None
