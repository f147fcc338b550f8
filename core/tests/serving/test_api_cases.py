"""schemathesis over `/openapi.json`: whatever is sent, no 5xx, documented answers, errors in their API's shape.

A few hundred cases here; `pytest -m full` sends 20,000 (TENON_CASES, TENON_CASES_SEED), half to a server that
generates, half to one that pools. Bodies that no schema leads to are sent to every route as well.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from api_cases import (
    ENVIRONMENT,
    HEADERS,
    OPTIONS,
    PLAIN_BODIES,
    check,
    hostile_bodies,
    load,
    run_generated,
    slow_answer,
    wrong_types,
)
from running_server import RunningServer, start_server

pytestmark = pytest.mark.e2e
CASES, SEED = 300, 7
POOLED = ("/v1/embeddings", "/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank")


@pytest.fixture(scope="module", params=["generate", "embed", "classify"])
def case_server(
    request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """(what it serves, the server): it ends as healthy as it began, by the same processes, without a traceback."""
    kind: str = request.param
    pooling = {"embed": {"FAKE_POOLING": "pool"}, "classify": {"FAKE_POOLING": "classify"}}.get(kind, {})
    running = start_server(
        folder, tmp_path_factory.mktemp("cases") / "server.log", environment={**ENVIRONMENT, **pooling}, **OPTIONS
    )
    try:
        running.wait_healthy()
        engine = running.engine_pid()
        yield kind, running
        assert running.health() == 200 and running.engine_pid() == engine
    finally:
        running.stop()
    log = running.log.read_text()
    assert "Traceback" not in log, log[-4000:]
    assert "correct-horse" not in log


def served(kind: str) -> str:
    """Part of the names of the routes that this server answers with more than a refusal."""
    return {"generate": "", "embed": "embeddings", "classify": "classify"}[kind]


def test_generated_cases(case_server: tuple[str, RunningServer]) -> None:
    kind, server = case_server
    most = CASES if kind == "generate" else CASES // 10
    tally = run_generated(server, cases=most, number=SEED, only=served(kind))
    assert tally.total >= most * 0.8, list(tally.lines())
    print("\n".join(tally.lines()))
    assert any(status == 400 for _, status in tally.counts)
    assert kind != "generate" or any(status == 200 for _, status in tally.counts)


@pytest.mark.full
@pytest.mark.timeout(2 * 3600)
def test_twenty_thousand_generated_cases(case_server: tuple[str, RunningServer]) -> None:
    kind, server = case_server
    total, number = int(os.environ.get("TENON_CASES", "20000")), int(os.environ.get("TENON_CASES_SEED", "1"))
    most = total // 2 if kind == "generate" else total // 4
    started = time.monotonic()
    print(
        f"\n{most} cases of {total} against a server that is made to {kind}; seed {number}; schemathesis"
        f" {schemathesis.__version__}; Python {platform.python_version()}; {os.cpu_count()} cores"
    )
    only = "" if kind == "generate" else "POST"
    tally = run_generated(server, cases=most, number=number, only=only, shows=True)
    print(f"{tally.total} answers in {time.monotonic() - started:.0f} s, none above 499")
    assert tally.total >= most


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("path", PLAIN_BODIES)
def test_seeded_bodies(case_server: tuple[str, RunningServer], path: str, step: int) -> None:
    kind, server = case_server
    if (kind != "generate") != (path in POOLED) or (kind == "classify" and path != "/classify"):
        pytest.skip("another server answers this route")
    document = load(server)
    with server.client(headers={**HEADERS, "content-type": "application/json"}) as client:
        assert client.post(path, json=PLAIN_BODIES[path]).status_code in (200, 400)
        for what, body in hostile_bodies():
            answer = client.post(path, content=body)
            check(document, f"POST {path}", answer.status_code, answer.headers["content-type"], answer.content)
            assert answer.status_code in (400, 413), (what, answer.status_code)
        for _, body in wrong_types(document, path, step):
            answer = client.post(path, content=body)
            check(document, f"POST {path}", answer.status_code, answer.headers["content-type"], answer.content)


def test_slow_bodies(case_server: tuple[str, RunningServer]) -> None:
    kind, server = case_server
    if kind != "generate":
        pytest.skip("the same code")
    document = load(server)
    with ThreadPoolExecutor(len(PLAIN_BODIES)) as threads:
        for path, (status, content, body) in zip(
            PLAIN_BODIES, threads.map(lambda path: slow_answer(server, path), PLAIN_BODIES), strict=True
        ):
            check(document, f"POST {path}", status, content, body)
            assert status == 408, (path, status)
