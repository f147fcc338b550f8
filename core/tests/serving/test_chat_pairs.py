"""T25 for conversations: two options together answer, or are refused by a field's name; a stream says the same."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from fake_model import model_folder
from running_server import RunningServer, start_server
from spoken_calls import TEMPLATE

pytestmark = pytest.mark.e2e
CHAT = "/v1/chat/completions"
ANSWER = '<think>\nhm \u20ac\n</think>\n\nyes.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
USER = [{"role": "user", "content": ANSWER}]
OPTIONS: dict[str, dict[str, Any]] = {
    "tools": {"tools": TOOLS},
    "required": {"tools": TOOLS, "tool_choice": "required"},
    "named": {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "now"}}},
    "allowed": {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {
        "mode": "auto", "tools": [{"type": "function", "function": {"name": "now"}}]}}},
    "no_tool": {"tools": TOOLS, "tool_choice": "none"},
    "one_call": {"parallel_tool_calls": False},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    "object": {"response_format": {"type": "json_object"}},
    "regex": {"structured_outputs": {"regex": "[a-z]+"}},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "as_ids": {"return_tokens_as_token_ids": True},
    "prompt_logprobs": {"prompt_logprobs": 1},
    "n": {"n": 2},
    "seed": {"seed": 3, "temperature": 0.7},
    "stop": {"stop": ["argu"], "include_stop_str_in_output": True},
    "stop_ids": {"stop_token_ids": [33]},
    "min_tokens": {"min_tokens": 30},
    "ignore_eos": {"ignore_eos": True},
    "bias": {"logit_bias": {"9": 5.0}},
    "bad_words": {"bad_words": ["never"]},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "beams": {"use_beam_search": True, "n": 2},
    "budget": {"thinking_token_budget": 8},
    "no_reasoning": {"include_reasoning": False},
    "token_ids": {"return_token_ids": True},
    "prompt_text": {"return_prompt_text": True},
    "interval": {"stream_interval": 7},
    "running_usage": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "cut": {"truncate_prompt_tokens": 64},
    "continued": {"messages": [*USER, {"role": "assistant", "content": "ab"}], "continue_final_message": True},
    "echo": {"messages": [*USER, {"role": "assistant", "content": "ab"}], "echo": True},
    "bare": {"add_generation_prompt": False},
    "salt": {"cache_salt": "tenant", "priority": 3},
    "text": {"skip_special_tokens": False},
}  # fmt: skip


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = tmp_path_factory.mktemp("pairs") / "qwen"
    running = start_server(
        model_folder(path, template=TEMPLATE), path / "server.log", environment={"FAKE_STEP_SECONDS": "0"}
    )
    try:
        running.wait_healthy()
        engine = running.engine_pid()
        yield running
        assert running.process.poll() is None and running.engine_pid() == engine
    finally:
        running.stop()
    assert "Traceback" not in running.log.read_text(), running.log.read_text()[-3000:]


def whole(answer: httpx.Response) -> dict[int, dict[str, Any]]:
    """index -> the message, why it ended, its tokens and how many log-probabilities it has."""
    found = {}
    for choice in answer.json()["choices"]:
        message = choice["message"]
        calls = [(one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls", ())]
        found[choice["index"]] = {
            "content": message["content"] or "",
            "reasoning": message.get("reasoning_content", ""),
            "calls": calls,
            "reason": choice["finish_reason"],
            "ids": choice.get("token_ids"),
            "num_logprobs": len((choice["logprobs"] or {}).get("content", ())),
        }
    return found


def streamed(answer: httpx.Response) -> dict[int, dict[str, Any]]:
    """The same, put together from a stream."""
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    found: dict[int, dict[str, Any]] = {}
    calls: dict[tuple[int, int], list[str]] = {}
    for piece in map(json.loads, lines):
        assert "error" not in piece, piece
        for choice in piece["choices"]:
            empty = {"content": "", "reasoning": "", "calls": [], "reason": None, "ids": None, "num_logprobs": 0}
            one, delta = found.setdefault(choice["index"], empty), choice["delta"]
            one["content"] += delta.get("content") or ""
            one["reasoning"] += delta.get("reasoning_content") or ""
            one["reason"] = choice["finish_reason"] or one["reason"]
            one["num_logprobs"] += len((choice["logprobs"] or {}).get("content", ()))
            if "token_ids" in choice:
                one["ids"] = [*(one["ids"] or ()), *choice["token_ids"]]
            for call in delta.get("tool_calls", ()):
                known = calls.setdefault((choice["index"], call["index"]), ["", ""])
                known[0] += call["function"].get("name", "")
                known[1] += call["function"]["arguments"]
    for (index, _), (name, arguments) in sorted(calls.items()):
        found[index]["calls"].append((name, arguments))
    return found


PAIRS = [*itertools.combinations_with_replacement(OPTIONS, 2)]


def test_two_options_together(talker: RunningServer) -> None:
    with talker.client() as client, ThreadPoolExecutor(8) as threads:
        statuses = [*threads.map(lambda pair: check(client, *pair), PAIRS)]
    assert statuses.count(200) > 450 and set(statuses) == {200, 400}, statuses.count(200)


def check(client: httpx.Client, first: str, second: str) -> int:
    """One pair."""
    body = {"messages": USER, "max_tokens": 120, **OPTIONS[first], **OPTIONS[second]}
    stream = client.post(CHAT, json={**body, "stream": True})
    body.pop("stream_options", None)
    answer = client.post(CHAT, json=body)
    case = (first, second, answer.text[:300], stream.text[:300])
    assert answer.status_code == stream.status_code, case
    if answer.status_code == 400:
        error = answer.json()["error"]
        assert first != second and error["param"] in {*OPTIONS[first], *OPTIONS[second]}, case
        assert stream.json()["error"]["message"] == error["message"], case
    elif answer.status_code == 200:
        found = whole(answer)
        assert streamed(stream) == found and len(found) == body.get("n", 1), case
        assert all(one["reason"] in ("stop", "length", "tool_calls") for one in found.values()), case
        assert all((one["num_logprobs"] > 0) == ("logprobs" in body) for one in found.values()), case
    return answer.status_code
