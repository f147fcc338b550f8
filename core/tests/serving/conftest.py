"""A running server over the fake engine, one a module of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fake_model import model_folder
from running_server import RunningServer, start_server


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "fake-model")


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = start_server(
        folder, tmp_path_factory.mktemp("logs") / "server.log", max_body_bytes=2_000_000, header_timeout=2.0,
        body_timeout=3.0,
    )  # fmt: skip
    try:
        running.wait_healthy()
        yield running
    finally:
        running.stop()
    log = running.log.read_text()
    assert "Traceback" not in log, log[-4000:]
    assert "correct-horse" not in log


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client() as made:
        yield made


@pytest.fixture(autouse=True)
def _unharmed(request: pytest.FixtureRequest) -> Iterator[None]:
    """The oracle after every case: the same processes, and a known request with its known answer."""
    if "server" not in request.fixturenames and "client" not in request.fixturenames:
        yield
        return
    running: RunningServer = request.getfixturevalue("server")
    engine = running.engine_pid()
    yield
    assert running.process.poll() is None and running.engine_pid() == engine
    with running.client() as made:
        answer = made.post("/v1/completions", json={"prompt": "abc", "max_tokens": 5, "seed": 1})
        assert answer.json()["choices"][0]["text"] == "abcab", answer.text
