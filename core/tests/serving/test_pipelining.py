"""Requests sent before the answers to those before them: in order, few, and gone with the client."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from running_server import KEY, RunningServer, start_server

pytestmark = pytest.mark.e2e
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
STEP_SECONDS = 0.01


@pytest.fixture(scope="module")
def slow(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Every token takes a while; headers have less time than a long answer."""
    environment = {"FAKE_STEP_SECONDS": str(STEP_SECONDS)}
    running = start_server(
        folder, tmp_path_factory.mktemp("pipes") / "server.log", environment=environment, header_timeout=1.0
    )
    try:
        running.wait_healthy()
        yield running
    finally:
        assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()


def asked(**fields: object) -> bytes:
    body = json.dumps({"prompt": "abc", "ignore_eos": True, **fields}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n" % (KEY.encode(), len(body)) + body


def linked(running: RunningServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", running.port), timeout=20)


def all_of(link: socket.socket) -> bytes:
    found = b""
    try:
        while data := link.recv(65536):
            found += data
    except ConnectionError:
        pass
    return found


def gauge(running: RunningServer, name: str) -> float:
    with running.client() as client:
        lines = client.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith(name)).split()[-1])


@pytest.mark.parametrize("rest", [b"GARBAGE\r\n\r\n", b"GET /health HTTP/1.1\r\nX: \x00\r\n\r\n", HEALTH[:20], b"\r\n"])
@pytest.mark.parametrize("stream", [False, True])
def test_what_comes_after_a_request_does_not_hurt_its_answer(slow: RunningServer, rest: bytes, stream: bool) -> None:
    """Nor does a refusal of it take that answer's place; the connection ends after the answer."""
    with linked(slow) as link:
        link.sendall(asked(max_tokens=150, stream=stream))
        time.sleep(0.2)
        link.sendall(rest)
        answer = all_of(link)
    assert answer.startswith(b"HTTP/1.1 200") and answer.count(b"HTTP/1.1 ") == 1
    assert answer.endswith(b"[DONE]\n\n\r\n0\r\n\r\n") if stream else b'"completion_tokens":150' in answer


def test_a_wrong_body_behind_a_request_is_not_answered_in_its_place(slow: RunningServer) -> None:
    chunked = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"
    with linked(slow) as link:
        link.sendall(asked(max_tokens=5) + chunked)
        answer = all_of(link)
    assert answer.startswith(b"HTTP/1.1 200") and answer.count(b"HTTP/1.1 ") == 1


def test_some_are_answered_in_order(slow: RunningServer) -> None:
    with linked(slow) as link:
        link.sendall(
            asked(max_tokens=20)
            + HEALTH * 3
            + asked(max_tokens=2)
            + HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        )
        answer = all_of(link)
    assert answer.count(b"HTTP/1.1 200") == 6
    assert answer.index(b'"completion_tokens":20') < answer.index(b'"status"') < answer.index(b'"completion_tokens":2,')


def test_many_are_not_held(slow: RunningServer) -> None:
    """Whoever sends without reading has no thousands of requests kept for it."""
    process = psutil.Process(slow.process.pid)
    before = process.memory_info().rss
    page = b"GET / HTTP/1.1\r\n\r\n"
    links = []
    for _ in range(10):
        link = socket.socket()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.settimeout(0.5)
        link.connect(("127.0.0.1", slow.port))
        with contextlib.suppress(OSError):
            link.sendall(page * 30_000)
        links.append(link)
    begun = time.monotonic()
    assert slow.health() == 200 and time.monotonic() - begun < 2
    assert process.memory_info().rss - before < 60 * 2**20
    for link in links:
        link.close()
    with linked(slow) as link:
        link.sendall(HEALTH * 100)
        assert 1 <= all_of(link).count(b"HTTP/1.1 200") < 100


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_what_runs_for_it(slow: RunningServer, stream: bool) -> None:
    """Also where another request of its was waiting."""
    link = linked(slow)
    link.sendall(asked(max_tokens=3000, stream=stream) + asked(max_tokens=3000) + HEALTH)
    deadline = time.monotonic() + 10
    while gauge(slow, "tenon:num_requests_running") != 1:
        assert time.monotonic() < deadline
    link.close()
    closed = time.monotonic()
    while gauge(slow, "tenon:num_requests_running") != 0:
        assert time.monotonic() - closed < 3000 * STEP_SECONDS / 4, "it still runs"
        time.sleep(0.1)
