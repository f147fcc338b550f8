"""What every answer of the HTTP API must be, whatever was sent; and the seeded bodies that are sent to every route.

The truth is `/openapi.json` (statuses, content types) and the types of answers behind it.
"""

from __future__ import annotations

import json
import re
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from running_server import KEY, RunningServer
from schemathesis.generation import GenerationMode

from tenon_core.serving.answer_types import ErrorAnswer, MessageErrorAnswer
from tenon_core.serving.description.document import described

LEAK = re.compile(r"Traceback|\.py\b|/work|/root|/tmp|site-packages|0x[0-9a-f]{6,}|correct-horse")
MAX_ERROR_BYTES = 8192
HEADERS = {"authorization": f"Bearer {KEY}"}
ENVIRONMENT = {"FAKE_DOCILE": "1", "FAKE_STEP_SECONDS": "0", "FAKE_MAX_MODEL_LEN": "96"}
OPTIONS: dict[str, Any] = {
    "tool_call_parser": "hermes", "reasoning_parser": "qwen3", "body_timeout": 3.0, "max_body_bytes": 4_000_000,
    "max_stored_responses": 50, "disable_access_log": True,
}  # fmt: skip


@dataclass(slots=True)
class Tally:
    """Answers by route and status."""

    counts: Counter[tuple[str, int]] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return self.counts.total()

    def lines(self, only: str = "") -> Iterator[str]:
        for label in [only] if only else sorted({label for label, _ in self.counts}):
            found = {status: count for (one, status), count in sorted(self.counts.items()) if one == label}
            yield f"{label:45} " + "  ".join(f"{status}: {count}" for status, count in found.items())


def check(document: dict[str, Any], label: str, status: int, kind: str, body: bytes) -> None:
    """Raise `AssertionError` unless the answer of route `label` is as described. kind: its content type."""
    method, _, path = label.partition(" ")
    shown = f"{label} {status} {kind} {body[:600]!r}"
    assert status < 500, shown
    described_answers = document["paths"][path][method.lower()]["responses"]
    assert str(status) in described_answers, shown
    kind = kind.partition(";")[0].strip()
    contents = described_answers[str(status)].get("content", {})
    assert kind in contents or (not contents and not body), shown
    if status >= 400:
        error: Any = MessageErrorAnswer if path.startswith("/v1/messages") else ErrorAnswer
        assert msgspec.json.decode(body, type=error).error.message, shown
        assert not LEAK.search(body.decode()), shown
        assert len(body) < MAX_ERROR_BYTES, shown
        return
    told = described(method, path.replace("{name}", "{name:path}"))
    if kind == "application/json":
        msgspec.json.decode(body, type=told.answer)
    elif kind == "text/event-stream":
        _check_events(body.decode(), told.chunk, shown)


def _check_events(text: str, chunk: Any, shown: str) -> None:
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert events, shown
    for data in events:
        if data == "[DONE]":
            continue
        value = json.loads(data)
        if "error" in value and value["error"] and "type" in value["error"]:
            assert "server_error" not in data and "api_error" not in data, data
        elif chunk is not Any:
            msgspec.json.decode(data, type=chunk)


def load(server: RunningServer) -> dict[str, Any]:
    """The served document."""
    with server.client() as client:
        found: dict[str, Any] = client.get("/openapi.json").json()
    return found


def run_generated(server: RunningServer, *, cases: int, number: int, only: str = "", shows: bool = False) -> Tally:
    """Send about that many generated cases, half of which fit the schemas; raises at the first wrong answer.

    number: the seed. only: part of the routes' names. shows: print each route's outcome as it is known. Routes without
    a body have few cases; what they leave goes to the others.
    """
    document = load(server)
    schema = schemathesis.openapi.from_dict(document)
    tally = Tally()
    found = [one.ok() for one in schema.get_all_operations()]
    operations = [one for one in found if only in one.label and "/playground/" not in one.label]
    operations.sort(key=lambda one: one.body.is_empty if hasattr(one.body, "is_empty") else not list(one.body))
    left = cases
    for place, operation in enumerate(reversed(operations)):
        most = max(left // (len(operations) - place), 2)
        before = tally.total
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            _run(server, document, operation, mode, max(most // 2, 1), number, tally)
        left -= tally.total - before
        if shows:
            print(*tally.lines(operation.label), flush=True)
    return tally


def _run(
    server: RunningServer,
    document: dict[str, Any],
    operation: Any,
    mode: GenerationMode,
    most: int,
    number: int,
    tally: Tally,
) -> None:
    @seed(number)
    @settings(
        max_examples=most, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )  # fmt: skip
    @given(case=operation.as_strategy(mode))
    def send(case: Any) -> None:
        answer = case.call(base_url=server.url, session=session, headers=HEADERS, timeout=30)
        tally.counts[operation.label, answer.status_code] += 1
        try:
            kind = answer.headers.get("content-type", [""])[0]
            check(document, operation.label, answer.status_code, kind, answer.content or b"")
        except Exception as error:
            raise AssertionError(f"{error}\n{case.as_curl_command()[:3000]}") from error

    cannot_be_wrong = suppress(Unsatisfiable) if mode is GenerationMode.NEGATIVE else nullcontext()
    with requests.Session() as session, cannot_be_wrong:
        send()


# seeded bodies


def hostile_bodies() -> Iterator[tuple[str, bytes]]:
    """(what it is, the body): none of them is an object that any route takes."""
    yield "nothing", b""
    yield "broken", b'{"prompt":'
    yield "no object", b"[1, 2]"
    yield "a text", b'"x"'
    yield "two values", b"{}{}"
    yield "UTF-16", '{"prompt": "a"}'.encode("utf-16")
    yield "bad UTF-8", b'{"prompt": "\xc3\x28\xff"}'
    yield "overlong UTF-8", b'{"prompt": "\xc0\xaf"}'
    yield "a control character", b'{"prompt": "\x01"}'
    yield "double keys", b'{"model": "a", "model": "b"}'
    yield "NaN", b'{"temperature": NaN}'
    yield "infinity", b'{"temperature": -Infinity}'
    yield "a giant integer", b'{"n": 1' + b"0" * 10_000 + b"}"
    yield "a giant exponent", b'{"temperature": 1e999999}'
    yield "deep lists", b'{"prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    yield "deep objects", b'{"a":' * 50_000 + b"1" + b"}" * 50_000
    yield "unclosed depth", b"[" * 100_000
    yield "unknown fields", json.dumps({f"field-{place}": place for place in range(20_000)}).encode()
    yield "a long key", json.dumps({"k" * 100_000: 1}).encode()
    yield "a path as key", b'{"__class__": {"__init__": "x"}}'


WRONG_VALUES: tuple[Any, ...] = (
    True, -1, 2**31, 2**63, -(2**63) - 1, 2**64, 1e308, 0.5, "", "x", "\ud800", "\x00", [], [[]], [None], {}, {"a": {}},
    [{"type": []}], [{"role": []}], [{"role": "user", "content": [[]]}], "x" * 70_000, [1] * 70_000,
)  # fmt: skip


def wrong_types(document: dict[str, Any], path: str, step: int = 1) -> Iterator[tuple[str, bytes]]:
    """Every field of a route's request with every wrong value (every `step`th), beside its required ones."""
    reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    for place, name in enumerate(document["components"]["schemas"][reference.rpartition("/")[2]]["properties"]):
        for value in WRONG_VALUES[place % step :: step]:
            yield f"{name} = {value!r:.40}", json.dumps({**PLAIN_BODIES.get(path, {}), name: value}).encode()


_MESSAGES = [{"role": "user", "content": "a"}]
_TEXTS = {"query": "a", "documents": ["b"]}
PLAIN_BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a", "max_tokens": 2},
    "/v1/chat/completions": {"messages": _MESSAGES, "max_tokens": 2},
    "/v1/messages": {"messages": _MESSAGES, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": _MESSAGES},
    "/v1/responses": {"input": "a", "max_output_tokens": 2},
    "/v1/responses/input_tokens": {"input": "a"},
    "/v1/embeddings": {"input": "a"},
    "/pooling": {"input": "a"},
    "/classify": {"input": "a"},
    **{path: {"text_1": "a", "text_2": "b"} for path in ("/score", "/v1/score")},
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), _TEXTS),
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [97]},
}


def slow_answer(server: RunningServer, path: str, *, seconds: float = 20) -> tuple[int, str, bytes]:
    """(status, content type, body) of a request whose body never ends: one byte is sent, and no more."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
        "Content-Length: 100\r\n\r\n{"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as link:
        link.sendall(head.encode())
        answer = b""
        while piece := link.recv(65536):
            answer += piece
    headers, _, body = answer.partition(b"\r\n\r\n")
    kind = re.search(rb"(?im)^content-type: *([^\r\n]+)", headers)
    return int(answer[9:12]), "" if kind is None else kind[1].decode(), body
