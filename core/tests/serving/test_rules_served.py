"""Bad words, limits of thoughts and running counts of tokens, as clients ask for them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest
from fake_model import byte_tokenizer

from tenon_core.client.bad_words import with_bad_words
from tenon_core.client.tokenizer import ClientTokenizer
from tenon_core.sampling.params import SamplingParams
from tenon_core.sampling.rules import BadWords, ThinkingLimit, Thought
from tenon_core.serving.parsers.reasoning.think import QWEN3
from tenon_core.serving.parsers.tools.gpt_oss import GPT_OSS
from tenon_platforms.errors import RequestError

HELLO = [{"role": "user", "content": "hi"}]


@pytest.mark.unit
def test_words_become_their_tokens_with_and_without_a_space() -> None:
    tokenizer = ClientTokenizer(backend=byte_tokenizer())
    filled = with_bad_words(SamplingParams(bad_words=("ab", " c")), tokenizer)
    assert filled.bad_word_ids == ((97, 98), (32, 97, 98), (99,), (32, 99))
    assert with_bad_words(SamplingParams(), tokenizer).bad_word_ids == ()
    for word in ("", "  ", "x" * 257, 5, "\ud800"):
        with pytest.raises(RequestError) as refused:
            with_bad_words(SamplingParams(bad_words=(word,)), tokenizer)  # type: ignore[arg-type]
        assert refused.value.param == "bad_words"
    with pytest.raises(RequestError, match="beam"):
        SamplingParams(bad_words=("a",), beam_width=2, n=1)


@pytest.mark.unit
def test_forbidden_tokens_are_those_that_complete_a_word() -> None:
    draw = np.random.default_rng(3)
    for _ in range(50):
        words = tuple(tuple(draw.integers(0, 4, draw.integers(1, 5)).tolist()) for _ in range(draw.integers(1, 6)))
        rule, output = BadWords(words=words), []
        for _ in range(60):
            completing = {t for t in range(4) if any(tuple([*output, t][-len(word) :]) == word for word in words)}
            assert rule.forbidden() == completing
            row = np.full(1, -1, dtype=np.int32)
            rule.narrow(row)
            assert [token for token in range(32) if not row.view(np.uint32)[0] >> token & 1] == sorted(completing)
            free = [token for token in range(4) if token not in completing]
            if not free:
                with pytest.raises(RequestError, match="bad_words"):
                    rule.advance(0)
                break
            output.append(int(draw.choice(free)))
            rule = rule.fork() if draw.random() < 0.2 else rule
            rule.advance(output[-1])


def spent(limit: ThinkingLimit, text: str) -> int | None:
    """After how many bytes of a text the end must come; None where it need not."""
    rule = Thought(limit=limit, text=lambda token: bytes([token]), end=tuple(limit.end.encode()), is_open=limit.is_open)
    for place, token in enumerate(text.encode()):
        if rule.is_spent:
            return place
        rule.advance(token)
    return None


@pytest.mark.unit
def test_formats_say_what_a_thought_is() -> None:
    closed, opened = QWEN3.limit(4, "<think>\n\n</think>"), QWEN3.limit(4, "...<think>\n")
    assert (closed.is_open, opened.is_open) == (False, True)
    assert spent(opened, "abcdefgh") == 4
    assert spent(opened, "ab</think>cdefghijkl") is None or spent(opened, "ab</think>cdefgh") == 4
    assert spent(QWEN3.limit(12, "...<think>"), "ab</think>" + "x" * 50) is None
    assert spent(closed, "abcdefghijklmnop") is None, "an answer that is no thought has no limit"
    assert spent(closed, "\n<think>abcdefgh") == len("\n<think>") + 4
    assert spent(closed, "text, then <think>abcdefgh") is None, "thoughts come first, as the parser reads them"
    assert spent(QWEN3.limit(0, "..<think>"), "abc") == 0
    harmony = GPT_OSS.limit(3, "<|start|>assistant")
    assert spent(harmony, "<|channel|>final<|message|>abcdef") is None
    assert spent(harmony, "<|channel|>analysis<|message|>abcdef") == len("<|channel|>analysis<|message|>") + 3
    twice = "<|channel|>analysis<|message|>ab<|end|><|start|>assistant<|channel|>analysis<|message|>"
    assert spent(GPT_OSS.limit(12, ""), twice + "abcdefghij") == len(twice) + 12 - len("ab<|end|>")


@pytest.mark.e2e
def test_bad_words(client: httpx.Client) -> None:
    def text(**fields: Any) -> str:
        answer = client.post("/v1/completions", json={"prompt": "abcabc", "max_tokens": 6, **fields})
        assert answer.status_code == 200, answer.text
        found: str = answer.json()["choices"][0]["text"]
        return found

    assert text() == "abcabc"
    assert text(bad_words=["bc"]) == "ab!ab!" and text(bad_words=["c", "xyz"]) == "ab!ab!"
    assert text(bad_words=[]) == text(bad_words=None) == "abcabc"
    body = {"messages": HELLO, "max_tokens": 40, "bad_words": ["hi"], "ignore_eos": True}
    said = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    assert "h!" in said and "hi" not in said
    for words in (["x"] * 129, [""], [" "], ["x" * 257], "x", [1], {"a": 1}):
        for path, more in (("/v1/completions", {"prompt": "a"}), ("/v1/responses", {"input": "a"})):
            answer = client.post(path, json={**more, "bad_words": words})
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "bad_words", answer.text


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", {"prompt": "abcd"}), ("/v1/chat/completions", {"messages": HELLO})]
)
def test_counts_of_tokens_in_every_piece(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    body = {**body, "max_tokens": 9, "n": 2, "stream": True, "ignore_eos": True, "return_token_ids": True}

    def pieces(**options: Any) -> list[dict[str, Any]]:
        answer = client.post(path, json={**body, "stream_options": options})
        assert answer.status_code == 200, answer.text
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
        assert lines.pop() == "[DONE]"
        return [json.loads(line) for line in lines]

    told = pieces(include_usage=True, continuous_usage_stats=True)
    counts = [one["usage"]["completion_tokens"] for one in told]
    assert counts == sorted(counts) and counts[-1] == 18
    told_so_far = 0
    for one, count in zip(told, counts, strict=True):
        told_so_far += sum(len(choice.get("token_ids") or ()) for choice in one["choices"])
        assert told_so_far <= count
    assert all(one["usage"]["total_tokens"] - one["usage"]["completion_tokens"] > 0 for one in told)
    assert not any("usage" in one for one in pieces(include_usage=True, continuous_usage_stats=False)[:-1])
    alone = client.post(path, json={**body, "stream_options": {"continuous_usage_stats": True}})
    assert alone.status_code == 400 and alone.json()["error"]["param"] == "stream_options"


@pytest.mark.e2e
def test_a_budget_needs_to_know_thoughts(client: httpx.Client) -> None:
    answer = client.post("/v1/chat/completions", json={"messages": HELLO, "thinking_token_budget": 5})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "thinking_token_budget", answer.text
    assert "--reasoning-parser" in answer.json()["error"]["message"]
    thinking = {"type": "enabled", "budget_tokens": 1024}
    body = {"messages": HELLO, "max_tokens": 1500, "thinking": thinking}
    assert client.post("/v1/messages", json=body).status_code == 200, "nothing is thought here, so nothing is ended"
