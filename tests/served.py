"""A real server over a tiny checkpoint, as tests start and stop it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 120  # ten times what a start takes on a quiet machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running server."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def metric(self, name: str) -> float:
        """The value of a metric without further labels than the model's name."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        found = re.search(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? ([0-9.e+-]+)$", text, re.MULTILINE)
        assert found is not None, text
        return float(found[1])

    def metric_of(self, name: str, **labels: str) -> float:
        """The value of a metric with these labels beside the model's name."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        (found,) = [
            row for row in text.splitlines() if row.startswith(f"{name}{{") and all(one in row for one in wanted)
        ]
        return float(found.rpartition(" ")[2])

    def settle(self) -> None:
        """Wait until no request runs or waits, and every KV block is free again."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            # a short request makes the engine send fresh statistics
            body = {"model": self.model(), "prompt": "x", "max_tokens": 1}
            assert httpx.post(f"{self.url}/v1/completions", json=body, timeout=LIMIT_S).status_code == 200
            busy = self.metric("tenon:num_requests_running") + self.metric("tenon:num_requests_waiting")
            if busy == 0 and self.metric("tenon:kv_cache_usage_perc") == 0:
                return
            time.sleep(0.2)
        raise AssertionError(httpx.get(f"{self.url}/metrics", timeout=30).text)

    def model(self) -> str:
        """The name it serves its model by."""
        name: str = httpx.get(f"{self.url}/v1/models", timeout=30).json()["data"][0]["id"]
        return name


def make_tiny_folder(folder: Path) -> Path:
    """A tiny random checkpoint with a byte tokenizer and a chat template."""
    subprocess.run([sys.executable, str(ROOT / "scripts" / "make_tiny_checkpoint.py"), str(folder)], check=True)
    return folder


@contextmanager
def serving(
    model: Path, log: Path, *flags: str, environment: dict[str, str] | None = None, threads: int = 1
) -> Iterator[Served]:
    """Serve, wait until it is healthy, and end it in order; what it logged holds no traceback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command: Sequence[str] = [sys.executable, "-m", "tenon_core.cli.main", "serve", str(model), "--port", str(port)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **(environment or {})}
    with log.open("wb") as output:
        process = subprocess.Popen([*command, *flags], stdout=output, stderr=output, env=environment)
    served = Served(url=f"http://127.0.0.1:{port}", process=process, log=log)
    try:
        _wait_healthy(served)
        yield served
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()[-4000:]
    assert "Traceback" not in log.read_text(), log.read_text()[-4000:]


def _wait_healthy(served: Served) -> None:
    deadline = time.monotonic() + LIMIT_S
    while True:
        assert served.process.poll() is None, served.log.read_text()
        assert time.monotonic() < deadline, served.log.read_text()
        try:
            if httpx.get(f"{served.url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
