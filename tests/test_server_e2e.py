"""A real server with a real engine, used by the official client: many requests at once, some cut off, nothing lost."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import psutil
import pytest

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 120  # ten times what a start takes on a quiet machine
NUM_REQUESTS = 32


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "tiny"
    subprocess.run([sys.executable, str(ROOT / "scripts" / "make_tiny_checkpoint.py"), str(folder)], check=True)
    return folder


@pytest.fixture(scope="module", params=["reference", "sim"])
def server(
    request: pytest.FixtureRequest, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A server's address, on the reference and on the asynchronous static-shape device."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("log") / "server.log"
    command = [sys.executable, "-m", "tenon_core.cli.main", "serve", str(tiny_folder), "--platform", request.param]
    # prompts of one step only would never show a shared prefix; 8 rows make the 32 requests queue
    command += ["--port", str(port), "--max-num-seqs", "8", "--num-blocks", "40", "--stall-seconds", "60"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "OMP_NUM_THREADS": "1"})
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_healthy(url, process, log)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()[-4000:]
    assert "Traceback" not in log.read_text(), log.read_text()[-4000:]


def _wait_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)


def _metric(url: str, name: str) -> float:
    text = httpx.get(f"{url}/metrics", timeout=30).text
    found = re.search(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? ([0-9.e+-]+)$", text, re.MULTILINE)
    assert found is not None, text
    return float(found[1])


async def _one(client: openai.AsyncOpenAI, model: str, index: int, *, cut: bool) -> tuple[int, str, str | None]:
    """(index, text, finish reason); `cut` leaves the stream after its second piece."""
    length = 4 + (index * 7) % 24
    prompt = f"{index:03d} " + "abcdefgh"[: index % 8] * (1 + index % 5)
    if index % 2 and not cut:
        answer = await client.completions.create(model=model, prompt=prompt, max_tokens=length, temperature=0)
        return index, answer.choices[0].text, answer.choices[0].finish_reason
    stream = await client.completions.create(
        model=model, prompt=prompt, max_tokens=100 if cut else length, temperature=0, stream=True
    )
    pieces, reason, count = [], None, 0
    async for event in stream:
        for choice in event.choices:
            pieces.append(choice.text)
            reason = choice.finish_reason or reason
        count += 1
        if cut and count == 2:
            await stream.close()
            return index, "", None
    return index, "".join(pieces), reason


async def _storm(url: str, *, cut_every: int) -> dict[int, tuple[str, str | None]]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=LIMIT_S, max_retries=0) as client:
        model = (await client.models.list()).data[0].id
        calls = (
            _one(client, model, index, cut=cut_every > 0 and index % cut_every == 0) for index in range(NUM_REQUESTS)
        )
        return {index: (text, reason) for index, text, reason in await asyncio.gather(*calls)}


def test_many_requests_with_one_in_four_cut_off(server: str) -> None:
    alone = asyncio.run(_storm(server, cut_every=0))
    assert all(reason in ("length", "stop") for _, reason in alone.values()), alone
    for _ in range(2):
        mixed = asyncio.run(_storm(server, cut_every=4))
        for index, answer in mixed.items():
            if index % 4:
                assert answer == alone[index], f"request {index} was disturbed by others that were cut off"
    _settles(server)


def test_memory_stays_flat_over_storms(server: str) -> None:
    asyncio.run(_storm(server, cut_every=4))
    _settles(server)
    before = _resident(server)
    for _ in range(4):
        asyncio.run(_storm(server, cut_every=4))
    _settles(server)
    assert _resident(server) < before * 1.10 + 8 * 2**20


def _settles(url: str) -> None:
    """No request runs or waits, and every KV block is free again."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        # a short request makes the engine send fresh statistics
        body = {"model": _model(url), "prompt": "x", "max_tokens": 1}
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=LIMIT_S).status_code == 200
        busy = _metric(url, "tenon:num_requests_running") + _metric(url, "tenon:num_requests_waiting")
        if busy == 0 and _metric(url, "tenon:kv_cache_usage_perc") == 0:
            return
        time.sleep(0.2)
    raise AssertionError(httpx.get(f"{url}/metrics", timeout=30).text)


def _model(url: str) -> str:
    name: str = httpx.get(f"{url}/v1/models", timeout=30).json()["data"][0]["id"]
    return name


def _resident(url: str) -> int:
    """Bytes of the server and its children."""
    port = int(url.rsplit(":", 1)[1])
    for process in psutil.process_iter(["pid"]):
        try:
            if any(c.laddr.port == port and c.status == psutil.CONN_LISTEN for c in process.net_connections("tcp")):
                family = [process, *process.children(recursive=True)]
                return sum(member.memory_info().rss for member in family)
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    raise AssertionError(f"nothing listens on {port}")
