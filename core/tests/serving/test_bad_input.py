"""T21 to T24, T41, T43: wrong values, sizes, ids, prompts and bodies; generated from the ceilings and the models.

Every case is answered 400 (or what it says) in OpenAI's shape, names its field, and harms nobody (see conftest).
"""

from __future__ import annotations

import json
import re
import time
import types
import typing
from typing import Any

import httpx
import psutil
import pytest
from fake_engine import EOS, VOCAB
from running_server import REFUSAL_SECONDS, RunningServer

from tenon_core.sampling.params import CEILINGS, LENGTH_CEILINGS
from tenon_core.serving.protocol import NOT_YET, ChatFields, CompletionFields, SamplingFields

pytestmark = pytest.mark.e2e
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
NUMBERS: list[Any] = [-(2**63), -1, 2**31, 2**63, 2**64, 1e308, True, "1", [1], {"a": 1}]
RAW_NUMBERS = ["NaN", "Infinity", "-Infinity", "1" * 70, "1e999"]
LEAK = re.compile(r"Traceback|\.py\b|/work|/root|/tmp|site-packages|0x[0-9a-f]{6,}|correct-horse")


def body_of(path: str, **fields: Any) -> dict[str, Any]:
    base: dict[str, Any] = {"prompt": "ab"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "a"}]}
    return {**base, "max_tokens": 3, **fields}


def assert_refused(answer: httpx.Response, param: str | None = None, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, (answer.status_code, answer.text[:300])
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert not LEAK.search(answer.text), answer.text
    assert len(answer.content) < 3000
    if param is not None:
        assert error["param"] == param or param in error["message"], error
    return error


def is_number(hint: Any) -> bool:
    kinds = {one for one in _leaves(hint) if isinstance(one, type)}
    return bool(kinds & {int, float}) and not kinds & {str, list, dict, bool}


def _leaves(hint: Any) -> list[Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [leaf for one in typing.get_args(hint) for leaf in _leaves(one)]
    if typing.get_origin(hint) is typing.Annotated:
        return _leaves(typing.get_args(hint)[0])
    return [typing.get_origin(hint) or hint]


def numeric_fields(model: type[SamplingFields]) -> list[str]:
    hints = typing.get_type_hints(model, include_extras=True)
    return [name for name in model.model_fields if is_number(hints[name])]


CASES = [(COMPLETIONS, name) for name in numeric_fields(CompletionFields)] + [
    (CHAT, name) for name in numeric_fields(ChatFields)
]


def test_no_numeric_field_is_missed() -> None:
    found = {name for _, name in CASES}
    assert set(CEILINGS) - {"logprobs", "beam_width"} <= found  # of beams there are `n`
    assert {"priority", "top_logprobs", "max_completion_tokens"} <= found


@pytest.mark.parametrize(("path", "name"), CASES)
def test_numbers_at_and_beyond_the_edges(client: httpx.Client, path: str, name: str) -> None:
    extra = {"logprobs": True} if name == "top_logprobs" else {}
    least, greatest = CEILINGS.get(name.replace("top_logprobs", "logprobs"), (-(2**31), 2**31 - 1))
    for value in [*NUMBERS, least - 1, greatest + 1 if greatest < 2**53 else 2 * greatest + 1]:
        is_allowed = not isinstance(value, (bool, str, list, dict)) and least <= value <= greatest
        if is_allowed:
            continue  # allowed by the field; other rules are tested elsewhere
        body = body_of(path, **extra)
        body.pop("max_tokens") if name == "max_completion_tokens" else None
        answer = client.post(path, json={**body, name: value})
        assert_refused(answer, "max_" if name == "max_completion_tokens" else name)
    for text in RAW_NUMBERS:
        body = json.dumps({**body_of(path, **extra), name: "@"}).replace('"@"', text)
        assert_refused(client.post(path, content=body, headers={"content-type": "application/json"}))


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_fields_that_depend_on_others(client: httpx.Client, path: str) -> None:
    assert_refused(client.post(path, json=body_of(path, min_tokens=4)), "min_tokens")
    assert_refused(client.post(path, json=body_of(path, max_tokens=None, min_tokens=5000)), "min_tokens")
    assert_refused(client.post(path, json=body_of(path, max_tokens=4096)), "max_tokens")
    assert_refused(client.post(path, json=body_of(path, stream_options={"include_usage": True})), "stream_options")
    assert_refused(client.post(path, json=body_of(path, stream=True, stream_options={"other": 1})), "stream_options")
    ends = {"allowed_token_ids": [EOS, 97], "stop_token_ids": [97], "min_tokens": 2}
    for more in ({}, {"allowed_token_ids": [EOS], "ignore_eos": True}):
        refused = client.post(path, json=body_of(path, **{**ends, **more}))
        assert "only tokens that min_tokens (2) forbids" in assert_refused(refused, "allowed_token_ids")["message"]
    for more in ({"min_tokens": 0}, {"allowed_token_ids": [EOS, 98]}, {"allowed_token_ids": None}):
        assert client.post(path, json=body_of(path, **{**ends, **more})).status_code == 200, more
    if path == CHAT:
        assert_refused(client.post(path, json=body_of(path, top_logprobs=2)), "top_logprobs")
        assert_refused(client.post(path, json=body_of(path, max_completion_tokens=2)), "max_completion_tokens")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("max_tokens", 0, "between 1 and 2147483647"), ("seed", 2**64, f"between {-(2**63)} and {2**64 - 1}"),
     ("repetition_penalty", 0, "between 0.001 and 100"), ("presence_penalty", 2.5, "between -2 and 2")],
)  # fmt: skip
def test_ranges_are_written_out(client: httpx.Client, name: str, value: float, words: str) -> None:
    error = assert_refused(client.post(CHAT, json=body_of(CHAT, **{name: value})), name)
    assert error["message"].endswith(words)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("name", [*LENGTH_CEILINGS, "metadata"])
def test_lists_that_are_too_long(client: httpx.Client, server: RunningServer, path: str, name: str) -> None:
    client.get("/health")
    before = psutil.Process(server.process.pid).memory_info().rss
    for count in (LENGTH_CEILINGS.get(name, 16) + 1, 10**5):
        values: Any = {"stop": ["x"] * count, "logit_bias": dict.fromkeys(map(str, range(count)), 1.0)}.get(
            name, [1] * count
        )
        if name == "metadata":
            values = {str(place): "x" for place in range(count)}
        assert_refused(client.post(path, json=body_of(path, **{name: values})), name)
    assert psutil.Process(server.process.pid).memory_info().rss - before < 200 * 2**20


def test_fan_out_is_refused_before_any_work(client: httpx.Client) -> None:
    for body, param in (
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 100, "n": 3}, "n"),
        ({"prompt": "a", "n": 10**9}, "n"),
        ({"prompt": "a", "n": 128}, "n"),
        ({"prompt": "a", "n": 2, "best_of": 10**9}, "best_of"),
        ({"prompt": ["x"] * 100_000}, "prompt"),
        ({"prompt": [[1]] * 100_000}, "prompt"),
    ):
        started = time.perf_counter()
        assert_refused(client.post(COMPLETIONS, json=body), param)
        assert time.perf_counter() - started < REFUSAL_SECONDS
    messages = [{"role": "user", "content": "a"}] * 5000
    assert_refused(client.post(CHAT, json={"messages": messages}), "messages")


@pytest.mark.parametrize("token", [-1, VOCAB, VOCAB + 1, 2**31, 2**63, True, 1.5, "1", None])
def test_token_ids(client: httpx.Client, token: Any) -> None:
    assert_refused(client.post(COMPLETIONS, json={"prompt": [5, token]}))
    assert_refused(client.post(COMPLETIONS, json={"prompt": [[5], [token]]}))
    assert_refused(client.post(COMPLETIONS, json={"prompt": "a", "stop_token_ids": [token]}), "stop_token_ids")
    assert_refused(client.post(COMPLETIONS, json={"prompt": "a", "allowed_token_ids": [token]}), "allowed_token_ids")
    if token != "1":  # the keys of a JSON object are texts
        assert_refused(client.post(COMPLETIONS, json={"prompt": "a", "logit_bias": {str(token): 1}}), "logit_bias")
    assert_refused(client.post("/detokenize", json={"tokens": [token]}), "tokens")


def test_token_ids_at_the_edges(client: httpx.Client) -> None:
    assert client.post(COMPLETIONS, json={"prompt": [VOCAB - 1], "max_tokens": 1}).status_code == 200
    assert client.post("/detokenize", json={"tokens": [VOCAB - 1]}).json() == {"prompt": ""}
    for body in ({"prompt": []}, {"prompt": ""}, {"prompt": [[]]}, {"prompt": [5] * 200_000}):
        assert_refused(client.post(COMPLETIONS, json=body), "prompt")
    assert_refused(client.post(COMPLETIONS, json={"prompt": "a", "allowed_token_ids": []}), "allowed_token_ids")
    assert_refused(client.post(COMPLETIONS, json={"prompt": "a", "logit_bias": {"5": 101}}), "logit_bias")


def test_odd_prompts(client: httpx.Client) -> None:
    kind = {"content-type": "application/json"}
    for path, body in (
        (COMPLETIONS, b'{"prompt":"a\\ud800b"}'),
        (CHAT, b'{"messages":[{"role":"user","content":"\\udfff"}]}'),
        (CHAT, b'{"messages":[{"role":"us er","content":"x"}]}'),
        (CHAT, b'{"messages":[{"role":"user","content":5}]}'),
        (CHAT, b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///x"}}]}]}'),
        (CHAT, b'{"messages":[]}'),
        (CHAT, b'{"messages":["x"]}'),
        (CHAT, b'{"messages":[{"content":"x"}]}'),
    ):
        assert_refused(client.post(path, content=body, headers=kind))
    assert client.post(COMPLETIONS, json={"prompt": "\x00", "max_tokens": 1}).json()["choices"][0]["text"] == "\x00"
    tokens = client.post("/tokenize", json={"messages": [{"role": "user", "content": "<|im_end|><|bos|>"}]}).json()
    assert sorted(token for token in tokens["tokens"] if token > 255) == [257, 257, 258]
    assert client.post("/tokenize", json={"prompt": "<|im_end|>"}).json()["tokens"] == [258]
    started = time.perf_counter()
    assert client.post("/tokenize", json={"prompt": "a" * 1_000_000}).json()["count"] == 1_000_000
    assert_refused(client.post(COMPLETIONS, json={"prompt": "a" * 1_000_000}), "prompt")
    assert time.perf_counter() - started < 30


@pytest.mark.parametrize("name", NOT_YET)
def test_what_is_not_available_yet_is_refused_by_name(client: httpx.Client, name: str) -> None:
    for path in (COMPLETIONS, CHAT):
        error = assert_refused(client.post(path, json=body_of(path, **{name: {"some": "thing"}})), name)
        is_served = path == CHAT and name in ChatFields.model_fields  # only this value of it is wrong
        assert is_served or "not available yet" in error["message"]
        for neutral in NOT_YET[name]:
            assert client.post(path, json=body_of(path, **{name: neutral})).status_code == 200, (name, neutral)


def test_unknown_fields_and_templates_in_requests(client: httpx.Client) -> None:
    for path in (COMPLETIONS, CHAT):
        assert_refused(client.post(path, json=body_of(path, no_such_field=1)), "no_such_field")
        assert_refused(client.post(path, json=body_of(path, chat_template="{{ 1 }}")), "chat_template")
    for kwargs in ({"chat_template": "x"}, {"tools": 1}, {"messages": []}, {"tokenize": True}, {"shout": [1]}):
        answer = client.post(CHAT, json=body_of(CHAT, chat_template_kwargs=kwargs))
        assert_refused(answer, "chat_template_kwargs")
    assert client.post(CHAT, json=body_of(CHAT, chat_template_kwargs={"shout": True})).status_code == 200
    assert_refused(client.post("/tokenize", json={"prompt": "a", "messages": [{"role": "user", "content": "a"}]}))
    assert_refused(client.post("/tokenize", json={}))
    for salt in ("", "x" * 257, "a\nb"):
        assert_refused(client.post(COMPLETIONS, json={"prompt": "a", "cache_salt": salt}), "cache_salt")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'"x"', 400),
        (b"\xff\xfe{\x00}", 400),
        (b'{"prompt":"a","prompt":"b"}', 400),
        (b'{"prompt":"a","n":1' + b"0" * 5000 + b"}", 400),
        (b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 400),
        (b'{"prompt":"' + b"a" * 2_000_001 + b'"}', 413),
        (b'{"prompt":"\x01"}', 400),
    ],
    ids=lambda value: str(value)[:30],
)
def test_hostile_bodies(client: httpx.Client, body: bytes, status: int) -> None:
    for path in (COMPLETIONS, CHAT, "/tokenize", "/detokenize"):
        assert_refused(client.post(path, content=body, headers={"content-type": "application/json"}), status=status)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/v1/responses", "/v1/messages", "/tokenize"])
def test_half_characters_in_any_field(client: httpx.Client, path: str) -> None:
    """What could be read and never be written: as a text, within one, as a key, and as a field's name."""
    base = {"/v1/responses": {"input": "a"}, "/tokenize": {"prompt": "a"}}.get(path, {**body_of(CHAT), "prompt": "a"})
    for name in ("stop", "user", "model", "metadata", "tools", "instructions", "cache_salt", "request_id", "no_such"):
        for value in ("\ud800", "a\udfffb", ["\ud800"], {"\ud800": "a"}, {"a": [{"b": "\udc00\ud83d"}]}):
            text = json.dumps({**base, name: value})
            answer = client.post(path, content=text, headers={"content-type": "application/json"})
            assert answer.status_code == 400 and name in answer.json()["error"]["message"], answer.text
    named = json.dumps({**base, "\ud800" * 9: 1})
    assert client.post(path, content=named, headers={"content-type": "application/json"}).status_code == 400
    long = client.post(path, json={**base, "k" * 100_000: 1})
    assert long.status_code == 400 and len(long.content) < 3000
    whole = {"/v1/responses": {"input": "\U0001f600"}, "/tokenize": {"prompt": "\U0001f600"}}
    taken = whole.get(path, {"max_tokens": 2, "prompt" if path == COMPLETIONS else "messages": "\U0001f600"})
    if "messages" in taken:
        taken["messages"] = [{"role": "user", "content": "\U0001f600"}]
    assert client.post(path, content=json.dumps(taken), headers={"content-type": "application/json"}).status_code == 200


def test_bodies_without_a_length_are_counted(client: httpx.Client) -> None:
    def endless() -> typing.Iterator[bytes]:
        yield b'{"prompt":"'
        for _ in range(40):
            yield b"a" * 100_000

    headers = {"content-type": "application/json"}
    assert_refused(client.post(COMPLETIONS, content=endless(), headers=headers), status=413)


def test_compressed_bodies_are_not_taken(client: httpx.Client) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    assert_refused(client.post(COMPLETIONS, content=b"\x1f\x8b", headers=headers), status=415)


def test_errors_and_logs_are_escaped_and_capped(client: httpx.Client, server: RunningServer) -> None:
    nasty = "x\r\nINFO forged\x1b[31m\x00" + "y" * 100_000
    assert_refused(client.post(COMPLETIONS, json={"prompt": "a", "user": nasty}))
    assert_refused(client.post(COMPLETIONS, json={"prompt": "a", "model": nasty[:900]}), status=404)
    assert_refused(client.post(COMPLETIONS, json={"prompt": "a", nasty: 1}))
    answer = client.get("/nope/" + "z" * 5000 + "%0d%0aINFO%20forged%1b[31m", headers={"x-request-id": "a b; c"})
    assert_refused(answer, status=404)
    assert answer.headers["x-request-id"] != "a b; c"
    assert client.get("/version", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    log = server.log.read_bytes()
    assert b"\x1b" not in log and b"\x00" not in log
    assert not any(line.startswith(b"INFO forged") for line in log.splitlines())
    assert max(map(len, log.splitlines())) < 6000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "TEXT"}),
        (COMPLETIONS, {"prompt": ["a", "TEXT"]}),
        (CHAT, {"messages": [{"role": "user", "content": "TEXT"}]}),
        ("/v1/responses", {"input": "TEXT"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "TEXT"}], "max_tokens": 1}),
    ],
)
def test_a_text_far_too_long_is_refused_by_its_bytes(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    sent = json.dumps(body).replace("TEXT", "many words " * 150_000)
    answer = client.post(path, content=sent, headers={"content-type": "application/json"})
    message, param = (answer.json()["error"].get(name) for name in ("message", "param"))
    assert param == (None if path == "/v1/messages" else next(iter(body)))  # Anthropic's errors name none
    assert answer.status_code == 400 and re.search(r"has at least \d{5} tokens; the model's context is 4096", message)
    if path == COMPLETIONS:  # where a part is asked for, all of it is read
        kept = client.post(path, json={"prompt": "many words " * 1000, "truncate_prompt_tokens": 9, "max_tokens": 1})
        assert kept.status_code == 200 and kept.json()["usage"]["prompt_tokens"] == 9


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"use_beam_search": True, "n": 17}, "n", "n is 17: it must lie between 0 and 16"),
        (
            {"use_beam_search": True, "n": 2, "stop_token_ids": [*range(100)]},
            "n",
            "n is 2, and 101 tokens end a text: too many for a beam search: give fewer stop_token_ids",
        ),
        (
            {"use_beam_search": True, "n": 10, "stop_token_ids": [*range(12)]},
            "n",
            "n is 10, and 13 tokens end a text: at most 7 beams are searched",
        ),
        ({"early_stopping": "soon"}, "early_stopping", "should be a valid boolean, or input should be 'never'"),
        ({"stop": 5}, "stop", "stop is 5: input should be a valid string, or input should be a valid list"),
    ],
)
def test_refusals_name_the_field_that_was_sent(
    client: httpx.Client, fields: dict[str, Any], param: str, message: str
) -> None:
    for path in (COMPLETIONS, CHAT):
        error = assert_refused(client.post(path, json=body_of(path, **fields)), param)
        assert error["param"] == param and message in error["message"], error
