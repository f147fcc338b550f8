"""T25: every two options of a request together answer, or are refused with 400; the server is as before afterwards."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import Served, serving

pytestmark = pytest.mark.e2e
TOKENS = 6
SHARED = "a prompt that is longer than a block, and was computed before: " * 2  # hits the prefix cache
OPTIONS: dict[str, dict[str, Any]] = {
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": -0.5},
    "repetition": {"repetition_penalty": 1.3},
    "logprobs": {"logprobs": 3},
    "prompt_logprobs": {"prompt_logprobs": 2},
    "echo": {"echo": True},
    "structured": {"response_format": {"type": "json_object"}},
    "prefix_hit": {"prompt": SHARED},
    "token_ids": {"prompt": [5, 6, 7, 5, 6, 7]},
    "two_prompts": {"prompt": ["one", "the other"]},
    "n": {"n": 3},
    "seed": {"seed": 11, "temperature": 1.0},
    "stop": {"stop": ["e", "th"]},
    "stop_ids": {"stop_token_ids": [10, 20, 30]},
    "min_tokens": {"min_tokens": TOKENS},
    "ignore_eos": {"ignore_eos": True},
    "bias": {"logit_bias": {"9": 50.0}},
    "allowed": {"allowed_token_ids": [60, 61, 62]},
    "top": {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": 0.01},
    "salt": {"cache_salt": "tenant"},
    "stream": {"stream": True, "stream_options": {"include_usage": True}},
}
NO_WAY_OUT = {"structured", "allowed"}  # none of the allowed tokens begins a JSON object
PAIRS = [*((name, name) for name in OPTIONS), *itertools.combinations(OPTIONS, 2)]


@pytest.fixture(scope="module")
def server(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("pairs") / "log"
    flags = ("--platform", "reference", "--max-num-seqs", "8", "--num-blocks", "64", "--stall-seconds", "60")
    with serving(tiny_folder, log, *flags) as served:
        yield served


def post(client: httpx.Client, **options: Any) -> httpx.Response:
    return client.post("/v1/completions", json={"prompt": "the quick", "max_tokens": TOKENS, **options})


def choices_of(answer: httpx.Response, *, is_stream: bool) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
    """(index -> text, finish reason and number of log-probabilities, usage) of an answer of either kind."""
    if not is_stream:
        pieces = [answer.json()]
    else:
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
        assert lines.pop() == "[DONE]"
        pieces = [json.loads(line) for line in lines]
        assert not [piece for piece in pieces if "error" in piece], answer.text
    found: dict[int, dict[str, Any]] = {}
    for choice in (choice for piece in pieces for choice in piece["choices"]):
        one = found.setdefault(choice["index"], {"text": "", "reason": None, "num_logprobs": 0})
        one["text"] += choice["text"]
        one["reason"] = choice["finish_reason"] or one["reason"]
        one["num_logprobs"] += len((choice.get("logprobs") or {}).get("tokens", ()))
    return found, next(piece["usage"] for piece in reversed(pieces) if piece.get("usage"))


@pytest.fixture(scope="module")
def quiet(server: Served) -> str:
    """What a known request answers before anything else ran."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        post(client, prompt=SHARED)  # from here on a prefix hit
        text: str = post(client, seed=3, temperature=1.0).json()["choices"][0]["text"]
        return text


@pytest.mark.parametrize("first", OPTIONS)
def test_two_options_together(server: Served, quiet: str, first: str) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for second in (pair[1] for pair in PAIRS if pair[0] == first):
            check(client, first, second)
        assert post(client, seed=3, temperature=1.0).json()["choices"][0]["text"] == quiet


def check(client: httpx.Client, first: str, second: str) -> None:
    """One pair."""
    options = {**OPTIONS[first], **OPTIONS[second]}
    answer = post(client, **options)
    if {first, second} == NO_WAY_OUT:
        assert answer.status_code == 400 and "structured_outputs" in answer.json()["error"]["message"], answer.text
        return
    assert answer.status_code == 200, (first, second, answer.text)
    choices, usage = choices_of(answer, is_stream=bool(options.get("stream")))
    num_prompts = 2 if isinstance(options.get("prompt"), list) and isinstance(options["prompt"][0], str) else 1
    assert len(choices) == num_prompts * options.get("n", 1), (first, second, choices)
    assert 1 <= usage["completion_tokens"] <= TOKENS * len(choices), (first, second, usage)
    for choice in choices.values():
        assert choice["reason"] in ("stop", "length"), (first, second, choice)
        assert (choice["num_logprobs"] > 0) == ("logprobs" in options), (first, second, choice)
        if options.get("echo") and isinstance(options.get("prompt"), str):
            assert choice["text"].startswith(options["prompt"]), (first, second, choice)


def test_the_pairs_left_nothing_behind(server: Served) -> None:
    server.settle()
