"""T29 to T31 over HTTP: invalid, expensive and many grammars. The engine behind is a fake one; nothing may reach it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from running_server import RunningServer, healthy_server

pytestmark = pytest.mark.e2e
ROUTES = {
    "/v1/completions": {"prompt": "ab", "max_tokens": 3},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
REFUSED: dict[str, dict[str, Any]] = {
    "broken regex": {"structured_outputs": {"regex": "(a"}},
    "look-ahead": {"structured_outputs": {"regex": "a(?=b)"}},
    "no schema": {"structured_outputs": {"json": "[1]"}},
    "no JSON": {"structured_outputs": {"json": "{"}},
    "wrong type": {"structured_outputs": {"regex": 3}},
    "empty": {"structured_outputs": {}},
    "two kinds": {"structured_outputs": {"regex": "a", "choice": ["a"]}},
    "unknown kind": {"structured_outputs": {"backend": "other", "regex": "a"}},
    "no choices": {"structured_outputs": {"choice": []}},
    "unsupported": {"structured_outputs": {"json": {"properties": {"a": {"not": {}}}}}},
    "remote reference": {"structured_outputs": {"json": {"$ref": "http://127.0.0.1:9/x.json"}}},
    "broken grammar": {"structured_outputs": {"grammar": "start: nowhere"}},
    "format without schema": {"response_format": {"type": "json_schema"}},
    "unknown format": {"response_format": {"type": "yaml"}},
    "both": {"response_format": FORMAT, "structured_outputs": {"regex": "a"}},
    "tags without trigger": {
        "response_format": {"type": "structural_tag", "structures": [{"begin": "<a>", "end": ""}], "triggers": []}
    },
    "nested tags of an expression": {
        "response_format": {"type": "structural_tag", "format": {"type": "regex", "pattern": "a"}}
    },
    "nested tags of a schema": {
        "response_format": {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"not": {}}}}
    },
    "deep schema": {"structured_outputs": {"json": '{"items":' * 500 + "{}" + "}" * 500}},
    "deep parentheses": {"structured_outputs": {"regex": "(" * 30_000 + "a" + ")" * 30_000}},
    "huge repeat": {"structured_outputs": {"grammar": "start: " + '"a"? ' * 20_000}},
}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("case", REFUSED)
def test_refused(client: httpx.Client, path: str, case: str) -> None:
    started = time.monotonic()
    answer = client.post(path, json={**ROUTES[path], **REFUSED[case]})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] in ("structured_outputs", "response_format"), error
    assert len(error["message"]) < 1000
    assert time.monotonic() - started < 25
    if case == "unsupported":
        assert "/properties/a/not" in error["message"]


HEAVY: dict[str, dict[str, Any]] = {
    "nested quantifiers": {"regex": "((a*)*)*b"},
    "counted repeats": {"regex": "(a{1000}){1000}"},
    "left recursion": {"grammar": 'start: start "a" | "a"'},
    "a reference to itself": {"json": {"$ref": "#"}},
    "a circle of references": {"json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
    "a large enumeration": {"json": {"enum": [f"value {place}" for place in range(10**5)]}},
    "many choices": {"choice": [str(place) for place in range(10**5)]},
}


@pytest.fixture(scope="module", params=["guidance", "xgrammar"])
def of_backend(folder: Path, tmp_path_factory: pytest.TempPathFactory, request: Any) -> Iterator[RunningServer]:
    """A server whose operator chose a backend."""
    options = {"TEST_ENGINE_OPTIONS": json.dumps({"structured_outputs_backend": request.param})}
    with healthy_server(folder, tmp_path_factory.mktemp(request.param) / "log", environment=options) as running:
        yield running


@pytest.mark.parametrize("case", HEAVY)
def test_heavy_grammars_answer_within_their_time(of_backend: RunningServer, case: str) -> None:
    """T30: taken or refused, in bounded time and memory, by each backend; a plain request is answered afterwards."""
    with of_backend.client() as client:
        check_heavy(client, case)
        assert client.post("/v1/completions", json=ROUTES["/v1/completions"]).status_code == 200


def check_heavy(client: httpx.Client, case: str) -> None:
    began = time.monotonic()
    answer = client.post("/v1/completions", json={**ROUTES["/v1/completions"], "structured_outputs": HEAVY[case]})
    assert answer.status_code in (200, 400), answer.text
    assert time.monotonic() - began < 25
    assert case not in ("many choices", "a large enumeration") or answer.status_code == 400


def test_an_expensive_grammar_holds_nobody_up(server: RunningServer) -> None:
    """It is ended at its time limit; requests beside it are answered meanwhile."""
    slow = {**ROUTES["/v1/completions"], "structured_outputs": {"grammar": "start: " + '"a"? ' * 20_000}}
    import threading

    answers: list[int] = []
    with server.client() as client:
        thread = threading.Thread(target=lambda: answers.append(client.post("/v1/completions", json=slow).status_code))
        thread.start()
        waits = []
        while thread.is_alive():
            began = time.monotonic()
            plain = httpx.post(
                f"{server.url}/v1/completions", json=ROUTES["/v1/completions"], headers=client.headers, timeout=20
            )
            assert plain.status_code == 200
            waits.append(time.monotonic() - began)
        assert answers == [400]
        assert sorted(waits)[len(waits) // 2] < 1.0


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.full)])
def test_many_small_schemas_leave_nothing_behind(server: RunningServer, client: httpx.Client, count: int) -> None:
    def size() -> int:
        family = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
        return sum(one.memory_info().rss for one in family)

    def send(index: int) -> None:
        wanted = {"json": json.dumps({**SCHEMA, "title": f"t{index}"})}
        answer = client.post("/v1/completions", json={**ROUTES["/v1/completions"], "structured_outputs": wanted})
        assert answer.status_code == 200, answer.text

    for index in range(100):
        send(index)
    before = size()
    for index in range(100, count):
        send(index)
    assert size() - before < 32 * 2**20


@pytest.mark.parametrize(
    "given",
    [
        {"response_format": {"type": "text"}},
        {"response_format": FORMAT},
        {"structured_outputs": {"json": {"propertyNames": {"maxLength": 3}}}},  # over the model's tokens, by XGrammar
        {"response_format": {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}},
    ],
)
def test_taken(client: httpx.Client, given: dict[str, Any]) -> None:
    for path, base in ROUTES.items():
        assert client.post(path, json={**base, **given}).status_code == 200
