"""T40, T41: headers, slow senders, framing; below any route."""

from __future__ import annotations

import gzip
import socket
import time

import httpx
import psutil
import pytest
from running_server import KEY, RunningServer

pytestmark = pytest.mark.e2e
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer "
HEAD += KEY.encode() + b"\r\n"


def exchange(server: RunningServer, *pieces: bytes, pause: float = 0.0, seconds: float = 15.0) -> bytes:
    """Send pieces, return everything that comes until the other side closes (or nothing more comes)."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as link:
        answer = b""
        try:
            for piece in pieces:
                link.sendall(piece)
                time.sleep(pause)
            while data := link.recv(65536):
                answer += data
        except (ConnectionError, TimeoutError):
            pass
        return answer


@pytest.mark.parametrize(
    "headers",
    [
        b"X: " + b"a" * 1_000_000 + b"\r\n",
        b"a" * 1_000_000 + b": x\r\n",
        b"".join(b"X-%d: y\r\n" % place for place in range(10_000)),
        b"X: y\r\n" * 200,
    ],
    ids=["value", "name", "many", "few but too many"],
)
def test_headers_have_limits(server: RunningServer, headers: bytes) -> None:
    before = psutil.Process(server.process.pid).memory_info().rss
    answer = exchange(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n")
    assert answer == b"" or answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400")), answer[:100]
    assert psutil.Process(server.process.pid).memory_info().rss - before < 50 * 2**20


def test_a_long_request_line(server: RunningServer) -> None:
    answer = exchange(server, b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer == b"" or answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400", b"HTTP/1.1 401")), answer[:100]


def test_slow_headers(server: RunningServer) -> None:
    started = time.monotonic()
    assert exchange(server, b"GET /health HTTP/1.1\r\nHo").startswith(b"HTTP/1.1 408")
    assert exchange(server, b"").startswith(b"HTTP/1.1 408")
    drip = [b"GET /health HTTP/1.1\r\n", *([b"X: y\r\n"] * 40)]
    assert exchange(server, *drip, pause=0.1)[:12] in (b"", b"HTTP/1.1 408")
    assert time.monotonic() - started < 30


def test_a_slow_body(server: RunningServer) -> None:
    answer = exchange(server, HEAD + b"Content-Length: 100\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408"), answer[:100]


def test_a_dripping_body(server: RunningServer) -> None:
    """T36: bytes that come all the time do not put the deadline off (3 s here)."""
    started = time.monotonic()
    answer = exchange(server, HEAD + b"Content-Length: 1000\r\n\r\n", *([b" "] * 60), pause=0.2)
    assert answer[:12] in (b"", b"HTTP/1.1 408"), answer[:100]
    assert time.monotonic() - started < 3 + 12 + 5  # the drip, where nobody ends it, goes on for 12 s


def test_a_body_whose_length_is_false(server: RunningServer) -> None:
    """T36: a length beyond the limit is refused before a byte comes; a body shorter than it says is none."""
    started = time.monotonic()
    for length in (2_000_001, 10**12, 10**30):
        answer = exchange(server, HEAD + b"Content-Length: %d\r\n\r\n" % length)
        assert answer.startswith((b"HTTP/1.1 413", b"HTTP/1.1 400")), answer[:100]
    assert time.monotonic() - started < 5
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as link:
        link.sendall(HEAD + b'Content-Length: 100\r\n\r\n{"prompt": "x"}')
        link.shutdown(socket.SHUT_WR)
        answer = link.recv(65536)
        assert not answer or answer.startswith(b"HTTP/1.1 4"), answer[:100]


def test_bombs_are_not_unpacked(client: httpx.Client, server: RunningServer) -> None:
    """T36, T41: 1 GB of zeros, one member or a thousand; refused by what the header says, memory flat."""
    before = psutil.Process(server.process.pid).memory_info().rss
    member = gzip.compress(bytes(2**20))
    for bomb in (gzip.compress(bytes(2**26)), member * 1000):
        for encoding in ("gzip", "deflate", "br", "zstd", "gzip, gzip", "GZIP"):
            headers = {"content-type": "application/json", "content-encoding": encoding}
            answer = client.post("/v1/chat/completions", content=bomb, headers=headers)
            assert answer.status_code == 415, (encoding, answer.text)
    assert psutil.Process(server.process.pid).memory_info().rss - before < 50 * 2**20


def test_a_body_without_a_key_is_not_read(server: RunningServer) -> None:
    """T41: the key comes first, whatever the body is said to be."""
    head = HEAD.replace(KEY.encode(), b"wrong")
    for rest in (
        b"Content-Length: 1000000000\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"Content-Length: 9\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as link:
            link.sendall(head + rest)
            assert link.recv(65536).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
        b"Content-Length: -5\r\n\r\nabcde",
        b"Content-Length: 5x\r\n\r\nabcde",
        b"Content-Length: 99999999999999999999999\r\n\r\nabcde",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nabc\r\n",
        b"Transfer-Encoding: identity\r\n\r\n",
        b"Bad Header\r\n\r\n",
        b"X: a\x00b\r\n\r\n",
        b"X\x01: ab\r\n\r\n",
        b" folded: x\r\n\r\n",
    ],
)
def test_framing_errors_close_the_connection(server: RunningServer, rest: bytes) -> None:
    second = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = exchange(server, HEAD + rest + second)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer[:100]
    assert b" 200 " not in answer, "a smuggled request was answered"


def test_compressed_framing_is_not_taken(server: RunningServer) -> None:
    answer = exchange(server, HEAD + b"Transfer-Encoding: gzip, chunked\r\nConnection: close\r\n\r\n0\r\n\r\n")
    assert answer.startswith((b"HTTP/1.1 415", b"HTTP/1.1 400")), answer[:100]


def test_odd_methods_do_not_grow_the_metrics(client: httpx.Client) -> None:
    def series() -> int:
        return sum(1 for line in client.get("/metrics").text.splitlines() if not line.startswith("#"))

    before = series()
    for place in range(1000):
        assert client.request(f"X{place}" if place % 10 == 0 else "PURGE", f"/p{place}").status_code in (400, 404, 405)
    for place in range(100):
        client.post("/v1/completions", json={"prompt": "x", "model": f"m{place}"})
    assert client.request("DELETE", "/v1/models").status_code == 405
    assert series() == before


def test_http_1_0_and_pipelining_work(server: RunningServer) -> None:
    assert exchange(server, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")
    two = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert exchange(server, two + last).count(b"HTTP/1.1 200") == 3


@pytest.mark.parametrize("stream", [True, False])
def test_http_1_0_knows_no_chunks(server: RunningServer, stream: bool) -> None:
    body = b'{"prompt": "abc", "max_tokens": 3, "stream": %s}' % str(stream).lower().encode()
    head = b"POST /v1/completions HTTP/1.0\r\nAuthorization: Bearer %s\r\nConnection: keep-alive\r\n" % KEY.encode()
    kind = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    headers, _, answer = exchange(server, head + kind + body).partition(b"\r\n\r\n")  # to the connection's end
    assert b"200 OK" in headers and b"transfer-encoding" not in headers and b"connection: close" in headers
    assert (b"content-length" in headers) == (not stream)
    if not stream:
        assert answer.startswith(b"{") and answer.endswith(b"}")
        return
    lines = answer.decode().split("\n\n")
    assert all(line.startswith("data: ") for line in lines[:-1]) and lines[-2:] == ["data: [DONE]", ""]


def test_a_keep_alive_connection_is_not_timed_out_by_the_header_limit(server: RunningServer) -> None:
    with server.client() as client:
        for _ in range(3):
            assert client.get("/version").status_code == 200
            time.sleep(1.2)
