"""A peer of `cpu.py` in a process of its own, with an interpreter of its own: JSON lines over its stdin and stdout.

The peer's script is its own server: after a first line with its name, `serve` there answers each line
`{"prompts": ..., "count": ...}` with `{"tokens": ...}`. Its stdout is kept for that: whatever its libraries print goes
to stderr, and so does the error that ends it. All its processes are stopped while it is not asked, so that none of
them polls on the cores of the engine whose turn it is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TextIO

Prompts = list[list[int]]
ENDING_S = 30.0


class Engine(Protocol):
    """What a peer's script serves."""

    name: str

    def generate(self, prompts: Prompts, count: int) -> Prompts:
        """Greedy tokens of every prompt, `count` of each."""
        ...


def cores(threads: int) -> list[int]:
    """The first cores that this process may run on, one a thread."""
    allowed = sorted(os.sched_getaffinity(0))
    if threads > len(allowed):
        raise SystemExit(f"--threads {threads}, and this process may run on {len(allowed)} cores: ask for fewer")
    return allowed[:threads]


class ProcessPeer:
    """One peer: `python script arguments`, on `cores` alone."""

    def __init__(
        self, python: str, script: Path, arguments: Sequence[str], *, threads: int, environment: Mapping[str, str]
    ) -> None:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        own = cores(threads)

        def start() -> None:
            os.sched_setaffinity(0, own)
            # A group of this session: once this process is gone, however, the system wakes and ends what stands still.
            os.setpgid(0, 0)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it does so with this, which `nohup` had ignored

        self._process = subprocess.Popen(
            [python, str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=kept | {"OMP_NUM_THREADS": str(threads)} | dict(environment),
            preexec_fn=start,
        )
        self.name: str = self._answer()["name"]
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # none of its group is left
            os.killpg(self._process.pid, number)

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}: its words are above")
        return json.loads(line)

    def generate(self, prompts: Prompts, count: int) -> Prompts:
        """Greedy tokens of every prompt, all at once; that there are `count` of each is checked."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps({"prompts": prompts, "count": count}) + "\n")
        self._process.stdin.flush()
        tokens: Prompts = self._answer()["tokens"]
        self._signal(signal.SIGSTOP)
        if [len(row) for row in tokens] != [count] * len(prompts):
            raise RuntimeError(f"{self.name} gave {[len(row) for row in tokens]} tokens, asked for {count} of each")
        return tokens

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING_S)
        self._signal(signal.SIGKILL)
        self._process.wait()


def claim_stdout() -> TextIO:
    """The peer's side, before its libraries are imported: the pipe to `cpu.py`, and stderr for all that they print."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def serve(engine: Engine, answers: TextIO) -> None:
    """The peer's side: answer until stdin ends."""
    print(json.dumps({"name": engine.name}), file=answers, flush=True)
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            tokens = engine.generate(asked["prompts"], asked["count"])
            print(json.dumps({"tokens": tokens}), file=answers, flush=True)
    finally:  # workers that it forked hold the pipe too: its end would never be seen
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
