"""Starts and stops fake servers for tests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

FOLDER = Path(__file__).parent
KEY = "correct-horse-battery"
REFUSAL_SECONDS = 1.0  # 0.1 s is what a refusal may take; ten times the slack


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(slots=True, kw_only=True)
class RunningServer:
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> httpx.Client:
        headers = {"authorization": f"Bearer {KEY}", **options.pop("headers", {})}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, **options)

    def wait_healthy(self, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while self.health() != 200:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def health(self) -> int:
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code
        except httpx.TransportError:
            return 0

    def engine_pid(self) -> int:
        import psutil

        children = psutil.Process(self.process.pid).children()
        return next(one.pid for one in children if "fake_process" in " ".join(one.cmdline()))

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


def start_server(
    folder: Path, log: Path, *, environment: dict[str, str] | None = None, **options: Any
) -> RunningServer:
    port = options.pop("port", None) or free_port()
    values = {"port": port, "api_key": [KEY], "served_model_name": ["fake"], **options}
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, str(FOLDER / "fake_server.py"), str(folder), json.dumps(values)],
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
    return RunningServer(process=process, port=port, log=log)


@contextmanager
def healthy_server(folder: Path, log: Path, **options: Any) -> Iterator[RunningServer]:
    """A server that answers, lives as long as it is needed, and never logs a traceback."""
    running = start_server(folder, log, **options)
    try:
        running.wait_healthy()
        yield running
        assert running.process.poll() is None
    finally:
        running.stop()
    assert "Traceback" not in running.log.read_text(), running.log.read_text()[-4000:]
