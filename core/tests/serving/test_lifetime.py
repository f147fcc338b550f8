"""T07, T25: the engine process, its link, its death and its hang; start, drain and the end of the server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import msgspec
import psutil
import pytest
import zmq
from fake_engine import SLOW
from fake_model import model_folder
from running_server import FOLDER, KEY, RunningServer, free_port, start_server

from tenon_core.client.private_folder import PrivateFolder, remove_abandoned
from tenon_core.engine.messages import GenerateRequest, Shutdown
from tenon_core.sampling.params import SamplingParams

pytestmark = pytest.mark.e2e


@pytest.fixture
def own(folder: Path, tmp_path: Path) -> Iterator[RunningServer]:
    """A server of one's own, to be mistreated."""
    running = start_server(
        folder, tmp_path / "log", stall_seconds=1.5, stall_kill_seconds=6.0, drain_seconds=3,
        environment={"FAKE_STEP_SECONDS": "0.02", "FAKE_MAX_WAITING": "4"},
    )  # fmt: skip
    running.wait_healthy()
    yield running
    if running.process.poll() is None:
        running.stop()


def link_of(server: RunningServer) -> str:
    paths = {one.laddr for one in psutil.Process(server.engine_pid()).net_connections("unix") if one.laddr}
    return next(path for path in paths if path.endswith("/engine"))


def dealer(context: zmq.Context[zmq.Socket[bytes]], path: str) -> zmq.Socket[bytes]:
    made = context.socket(zmq.DEALER)
    made.setsockopt(zmq.LINGER, 200)
    made.connect(f"ipc://{path}")
    return made


def generates(server: RunningServer) -> bool:
    with server.client() as client:
        answer = client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 4})
        return answer.status_code == 200 and answer.json()["choices"][0]["text"] == "abca"


def test_hostile_frames_are_dropped(own: RunningServer, tmp_path: Path) -> None:
    path, canary = link_of(own), tmp_path / "canary"
    pickled = b"cposix\nsystem\n(S'touch %s'\ntR." % str(canary).encode()
    order = msgspec.msgpack.encode(
        GenerateRequest(id=1, prompt=b"\x61\0\0\0", params=SamplingParams(max_tokens=5, seed=1))
    )
    wrong = b"0" * 32
    hostile = [
        [b""], [b"", b""], [wrong, b""], [wrong, order], [order], [wrong, order, b"more"], [b"x" * 1_000_000],
        [wrong, pickled], [pickled], [wrong, msgspec.msgpack.encode(Shutdown())], [os.urandom(500), os.urandom(500)],
        [b"\xdf\xff\xff\xff\xff" * 3], *[[os.urandom(64)] * 3 for _ in range(50)],
    ]  # fmt: skip
    engine = own.engine_pid()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    peer, silent = dealer(context, path), dealer(context, path)  # `silent` never reads and never shows the secret
    try:
        for frames in hostile:
            peer.send_multipart(frames)
        assert generates(own)
        assert not peer.poll(500) and not silent.poll(0), "something was pushed to a peer without the secret"
        with socket.socket(socket.AF_UNIX) as raw:  # below the queue's own protocol
            raw.connect(path)
            raw.sendall(b"\xff" + b"\xff" * 8 + b"\x7f" + os.urandom(4096))
    finally:
        peer.close()
        silent.close()
        context.term()
    assert generates(own)
    assert own.engine_pid() == engine and not canary.exists()
    assert "dropped a frame" in own.log.read_text()


def test_frames_that_are_no_message_though_the_secret_is_right(tmp_path: Path) -> None:
    """With the secret known: every kind of damage to what follows it."""
    secret, path = os.urandom(32), tmp_path / "engine"
    order = {"config": {"model": "m"}, "address": f"ipc://{path}", "secret": secret.hex()}
    engine = subprocess.Popen(
        [sys.executable, str(FOLDER / "fake_process.py")], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert engine.stdin is not None
    engine.stdin.write(json.dumps(order).encode() + b"\n")
    engine.stdin.flush()
    good = msgspec.msgpack.encode(
        GenerateRequest(id=7, prompt=b"\x61\0\0\0", params=SamplingParams(max_tokens=2, seed=1))
    )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    peer = dealer(context, str(path))
    try:
        peer.send_multipart([secret, b""])
        assert peer.poll(30_000) and b"ready" in peer.recv()
        damaged = [good[:-3], good + b"x", b"\x81\xa4type\xa4nope", b"\xc1", good.replace(b"generate", b"generatf")]
        damaged += [good.replace(b"\x61\0\0\0", b"\x61\0\0"), b"\x91" * 5000, b"\xdd\xff\xff\xff\xff"]
        for body in damaged:
            peer.send_multipart([secret, body])
        peer.send_multipart([secret, good])
        seen = b""
        while b"\x07" not in seen.replace(b"\xce\x00\x07", b"\x07") or b"step" not in seen:
            assert peer.poll(10_000), "the engine does not answer any more"
            seen = peer.recv()
        assert engine.poll() is None
        peer.send_multipart([secret, msgspec.msgpack.encode(Shutdown())])
        assert engine.wait(20) == 0
    finally:
        engine.kill()
        engine.wait()
        peer.close()
        context.term()


def test_a_killed_engine_is_found_and_started_again(own: RunningServer) -> None:
    failed: list[int] = []

    def wait_for_an_answer() -> None:
        with own.client() as client:
            failed.append(client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 3000}).status_code)

    thread = threading.Thread(target=wait_for_an_answer)
    thread.start()
    time.sleep(0.5)
    engine = own.engine_pid()
    os.kill(engine, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while own.health() == 200:
        assert time.monotonic() < deadline, "health says that all is well 5 s after the engine was killed"
        time.sleep(0.02)
    thread.join(10)
    assert failed == [503]
    own.wait_healthy()
    assert own.engine_pid() != engine
    assert generates(own)


def test_a_hung_engine_is_found_and_started_again(own: RunningServer) -> None:
    engine = own.engine_pid()
    os.kill(engine, signal.SIGSTOP)
    deadline = time.monotonic() + 5
    while own.health() == 200:
        assert time.monotonic() < deadline, "health says that all is well 5 s after the engine hung"
        time.sleep(0.05)
    os.kill(engine, signal.SIGCONT)
    own.wait_healthy(5)  # a stall that passes is forgiven
    assert own.engine_pid() == engine
    with own.client() as client, pytest.raises(httpx.TimeoutException):
        client.post("/v1/completions", json={"prompt": [2], "max_tokens": 2}, timeout=1)  # hangs the fake's loop
    while own.health() == 200:
        assert time.monotonic() < deadline + 10, "health says that all is well though the loop hangs"
        time.sleep(0.05)
    own.wait_healthy(40)
    assert own.engine_pid() != engine
    assert generates(own)


def test_a_long_step_is_no_stall(folder: Path, tmp_path: Path) -> None:
    """The fake says that a token takes 0.15 s. A step of 4 s is then right for 40 tokens, and a stall for 2."""
    running = start_server(
        folder, tmp_path / "log", stall_seconds=0.8, stall_kill_seconds=30.0, environment={"FAKE_TOKEN_SECONDS": "0.15"}
    )
    try:
        running.wait_healthy()
        assert health_during(running, [SLOW] * 40) == {200}
        assert health_during(running, [SLOW] * 2) == {200, 503}
        running.wait_healthy(5)
        assert generates(running)
    finally:
        assert running.stop() == 0


def health_during(server: RunningServer, prompt: list[int]) -> set[int]:
    """What /health said while a request was answered."""

    def ask() -> None:
        with server.client() as client:
            answer = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1})
            assert answer.status_code == 200, answer.text

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        seen = set()
        while not asked.done():
            seen.add(server.health())
            time.sleep(0.05)
        asked.result()
    return seen


def test_a_full_queue(own: RunningServer) -> None:
    statuses: list[tuple[int, str | None]] = []

    def ask(stream: bool) -> None:
        with own.client() as client:
            body = {"prompt": "abc", "max_tokens": 60, "stream": stream}
            answer = client.post("/v1/completions", json=body)
            statuses.append((answer.status_code, answer.headers.get("retry-after")))

    threads = [threading.Thread(target=ask, args=(place % 2 == 0,)) for place in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {status for status, _ in statuses} == {200, 429}, statuses
    assert all(retry for status, retry in statuses if status == 429)


def test_a_client_that_goes_away_frees_its_place(own: RunningServer) -> None:
    with own.client() as client:
        body = {"prompt": "abc", "max_tokens": 3000}
        with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            next(answer.iter_lines())
        with pytest.raises(httpx.TimeoutException):
            client.post("/v1/completions", json=body, timeout=0.4)
        deadline = time.monotonic() + 10
        while 'finished_reason="abort",model_name="fake"} 2.0' not in client.get("/metrics").text:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_draining_lets_running_requests_finish(own: RunningServer) -> None:
    texts: list[str] = []

    def ask() -> None:
        with own.client() as client:
            answer = client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 60})
            texts.append(answer.json()["choices"][0]["text"])

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.4)
    engine = psutil.Process(own.engine_pid())
    folder = Path(link_of(own)).parent
    assert own.stop() == 0
    thread.join(10)
    assert texts == [("abc" * 20)]
    engine.wait(5)
    assert not folder.exists()


def test_draining_has_an_end(own: RunningServer) -> None:
    def ask() -> None:
        with own.client() as client, suppress(httpx.TransportError):  # cut off, as it should be
            client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 3000})

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.4)
    started = time.monotonic()
    assert own.stop() == 0
    assert time.monotonic() - started < 15
    thread.join(10)


def test_the_engine_ends_with_its_parent(own: RunningServer) -> None:
    tree = psutil.Process(own.process.pid).children(recursive=True)
    assert tree
    folder = Path(link_of(own)).parent
    assert folder.is_dir()
    own.process.kill()
    own.process.wait()
    _, alive = psutil.wait_procs(tree, timeout=10)
    assert not alive, alive
    assert not folder.exists(), [*folder.iterdir()]


def test_what_a_killed_tree_left_goes_with_the_next_start(own: RunningServer) -> None:
    folder = Path(link_of(own)).parent
    os.kill(own.engine_pid(), signal.SIGSTOP)  # too late to clean up when its parent goes
    engine = own.engine_pid()
    own.process.kill()
    os.kill(engine, signal.SIGKILL)
    own.process.wait()
    assert folder.is_dir(), "something else removed it: this test shows nothing"
    ours = PrivateFolder()
    try:
        assert not folder.exists()
        assert remove_abandoned(ours.path.parent) == [] and ours.path.is_dir(), "a folder in use was removed"
    finally:
        ours.remove()
    assert not ours.path.exists()


def test_the_port_answers_before_the_engine_is_ready(folder: Path, tmp_path: Path) -> None:
    running = start_server(folder, tmp_path / "log")
    statuses = set()
    try:
        deadline = time.monotonic() + 60
        while 200 not in statuses and time.monotonic() < deadline:
            statuses.add(running.health())
            try:
                early = httpx.get(f"{running.url}/ready", headers={"x-api-key": KEY})
                statuses.add(early.status_code)
            except httpx.TransportError:
                pass
        assert {503, 200} <= statuses
    finally:
        assert running.stop() == 0


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("broken", "the fake model is broken"),
        ("missing", "not found"),
        ("template", "chat template"),
        ("port", "cannot listen"),
    ],
)
def test_a_start_that_fails(tmp_path: Path, kind: str, message: str) -> None:
    options: dict[str, object] = {}
    folder = tmp_path / "missing"
    if kind != "missing":
        folder = model_folder(tmp_path / kind, template="{% for %}" if kind == "template" else "{{ messages }}")
    with socket.socket() as taken:
        port = free_port()
        if kind == "port":
            taken.bind(("127.0.0.1", port))
            taken.listen()
        running = start_server(folder, tmp_path / "log", port=port, **options)
        assert running.process.wait(60) == 2
    log = running.log.read_text()
    assert message in log and "Traceback" not in log, log
