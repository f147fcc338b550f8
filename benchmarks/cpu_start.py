"""From process start to the first token, and a server's memory under load: one checkpoint on Tenon's CPU platform.

    python benchmarks/cpu_start.py MODEL.gguf [--threads 2] [--runs 3] [--concurrent 16] [--length 128] [--json]

*Offline* is a script that makes an `LLM` and generates one token. *Served* is `tenon serve`, asked again and again for
a stream of one token until the first one comes. CPU seconds are those of all processes until that token; they say more
than wall seconds where others use the machine. *Memory* is of a server with `--concurrent` requests at once, each of
`--length` tokens in and out: the sum of the processes' proportional set sizes (pages that several share count once),
sampled, at its peak, by process; and the sum of each process's own peak, shared pages counted for each. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tenon_core.children import module_command

SCRIPT = (
    "import sys\n"
    "from tenon_core import LLM, SamplingParams\n"
    "llm = LLM(sys.argv[1], platform='cpu', platform_opt=tuple(sys.argv[2:]))\n"
    "params = SamplingParams(max_tokens=1, temperature=0.0)\n"
    "print(repr(llm.generate('Hello', params)[0].outputs[0].text), flush=True)\n"
    "sys.stdin.read()\n"
)
TICKS = os.sysconf("SC_CLK_TCK")
POLL_S, SAMPLE_S, START_S = 0.05, 0.1, 300.0
# As installed: byte code is kept. One start of each kind is not counted, so that it is there and files are in memory.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is measured."""

    model: str
    threads: int
    options: tuple[str, ...] = ()

    @property
    def platform_options(self) -> tuple[str, ...]:
        """As `--platform-opt` takes them."""
        return (f"cpu.threads={self.threads}", *self.options)


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*"):
            with suppress(OSError):  # gone meanwhile
                found += map(int, (task / "children").read_text().split())
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, of those that descend from it, and of those of them that it waited for."""
    total = 0
    for one in tree(pid):
        with suppress(OSError):
            total += sum(map(int, Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return total / TICKS


def memory_of(pid: int) -> dict[str, int]:
    """KiB of one process: its shares of pages (Pss, anonymous ones, files'), what is resident, and the peak of that."""
    found: dict[str, int] = {}
    for name in ("smaps_rollup", "status"):
        for line in Path(f"/proc/{pid}/{name}").read_text().splitlines():
            key, _, value = line.partition(":")
            if key in ("Pss", "Pss_Anon", "Pss_File", "Rss", "VmHWM"):
                found[key] = int(value.split()[0])
    return found


def role_of(pid: int) -> str:
    """What a process of ours is, by its command line."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    named = [word for word in words if word.startswith("tenon_core.")]
    return named[0].removeprefix("tenon_core.") if named else words[0]


@dataclass(slots=True)
class Watch:
    """Samples the memory of a process tree in a thread."""

    pid: int
    peak_kib: int = 0
    at_peak: dict[str, dict[str, int]] = field(default_factory=dict)
    own_peaks: dict[int, int] = field(default_factory=dict)
    _end: threading.Event = field(default_factory=threading.Event)

    def sample(self) -> None:
        """Once."""
        now: dict[str, dict[str, int]] = {}
        for pid in tree(self.pid):
            try:
                memory, role = memory_of(pid), role_of(pid)
            except OSError:
                continue
            if "Pss" in memory:
                now[f"{role} ({pid})"] = memory
                self.own_peaks[pid] = max(memory["VmHWM"], self.own_peaks.get(pid, 0))
        if (total := sum(one["Pss"] for one in now.values())) > self.peak_kib:
            self.peak_kib, self.at_peak = total, now

    @contextmanager
    def running(self) -> Iterator[None]:
        """Meanwhile."""

        def watch() -> None:
            while not self._end.wait(SAMPLE_S):
                self.sample()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()
            self.sample()


def offline(setting: Setting) -> dict[str, float]:
    """Seconds of a script from its start to its first token."""
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, setting.model, *setting.platform_options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
    ) as script:
        assert script.stdout is not None
        if not script.stdout.readline():
            raise SystemExit("the script ended without a token")
        return {"wall_s": time.monotonic() - began, "cpu_s": cpu_seconds(script.pid)}


@dataclass(slots=True, kw_only=True)
class Served:
    """A server and when its first token came."""

    client: httpx.Client
    pid: int
    first: dict[str, float] = field(default_factory=dict)

    def ask(self, prompt: str | list[int], tokens: int, timeout: float) -> int:
        """Stream one answer; the number of its chunks with text, or 0 where the server is not ready."""
        body: dict[str, Any] = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True}
        chunks = 0
        body["ignore_eos"] = True
        with self.client.stream("POST", "/v1/completions", json=body, timeout=timeout) as answer:
            if answer.status_code != 200:
                return 0
            for line in answer.iter_lines():
                chunks += line.startswith("data: {")
                if chunks == 1 and tokens == 1:
                    return 1
        return chunks


@contextmanager
def serving(setting: Setting) -> Iterator[Served]:
    """A server that has given its first token."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    flags = ["--platform", "cpu", "--port", str(port), "--served-model-name", "m", "--disable-access-log"]
    flags += [f"--platform-opt={option}" for option in setting.platform_options]
    client = httpx.Client(base_url=url, verify=False, limits=httpx.Limits(max_connections=None))
    began = time.monotonic()
    server = subprocess.Popen(
        module_command("tenon_core.cli.main", "serve", setting.model, *flags),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
    )
    try:
        served = Served(client=client, pid=server.pid)
        while True:
            try:
                if served.ask("Hello", 1, 5.0):
                    break
            except httpx.HTTPError:
                pass  # not listening yet
            if server.poll() is not None or time.monotonic() > began + START_S:
                raise SystemExit("the server did not come up")
            time.sleep(POLL_S)
        served.first = {"wall_s": time.monotonic() - began, "cpu_s": cpu_seconds(server.pid)}
        yield served
    finally:
        client.close()
        server.send_signal(signal.SIGTERM)
        server.wait()


def load(served: Served, concurrent: int, length: int) -> dict[str, Any]:
    """The memory of a server that answers `concurrent` requests at once."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(5, 40000, length).tolist() for _ in range(concurrent)]
    watch = Watch(served.pid)
    watch.sample()
    idle = watch.peak_kib
    with watch.running(), ThreadPoolExecutor(concurrent) as pool:
        chunks = list(pool.map(lambda prompt: served.ask(prompt, length, 600.0), prompts))
    if not all(chunks):
        raise SystemExit("a request failed")
    return {
        "idle_mib": idle / 1024,
        "peak_mib": watch.peak_kib / 1024,
        "sum_of_own_peaks_mib": sum(watch.own_peaks.values()) / 1024,
        "processes_mib": {
            name: {key: value / 1024 for key, value in memory.items()} for name, memory in watch.at_peak.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--platform-opt", action="append", default=[], help="further options, such as cpu.gguf=inplace")
    parser.add_argument("--runs", type=int, default=3, help="starts of each kind")
    parser.add_argument("--warm", type=int, default=1, help="starts of each kind that are not counted")
    parser.add_argument("--concurrent", type=int, default=16, help="requests at once; 0: no load")
    parser.add_argument("--length", type=int, default=128, help="tokens of each prompt and of each answer")
    parser.add_argument("--only", choices=("offline", "served"), help="one kind of start")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    setting = Setting(model=args.model, threads=args.threads, options=tuple(args.platform_opt))
    report: dict[str, Any] = {
        "setting": {
            "model": Path(args.model).name,
            "platform_options": setting.platform_options,
            "cores": len(os.sched_getaffinity(0)),
            "load_1m": os.getloadavg()[0],
            "runs": args.runs,
            "concurrent": args.concurrent,
            "length": args.length,
            "malloc_arena_max": os.environ.get("MALLOC_ARENA_MAX", ""),
        }
    }
    if args.only != "served":
        report["offline"] = [offline(setting) for _ in range(args.warm + args.runs)][args.warm :]
    if args.only != "offline":
        report["served"] = []
        for run in range(args.warm + args.runs):
            with serving(setting) as served:
                report["served"] += [served.first] if run >= args.warm else []
                if args.concurrent and run == args.warm + args.runs - 1:
                    report["memory"] = load(served, args.concurrent, args.length)
    if args.json:
        print(json.dumps(report))
        return
    print("  ".join(f"{key}={value}" for key, value in report["setting"].items()))
    for kind in ("offline", "served"):
        for key in ("wall_s", "cpu_s") if kind in report else ():
            values = [run[key] for run in report[kind]]
            print(f"{kind:8} {key:7} median {statistics.median(values):.2f}  least {min(values):.2f}")
    if "memory" in report:
        memory = report["memory"]
        print("MiB: " + "  ".join(f"{key}={value:.0f}" for key, value in memory.items() if isinstance(value, float)))
        for name, each in memory["processes_mib"].items():
            print(f"  {name:40} " + "  ".join(f"{key}={value:.0f}" for key, value in each.items()))


if __name__ == "__main__":
    main()
