"""A peer of the CPU benchmark in a process of its own: what it says, when it runs, how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPT = """
import os, sys
sys.path.insert(0, sys.argv[1])
from peer_process import claim_stdout, serve

class Counting:
    name = f"counting {os.environ['OMP_NUM_THREADS']}"
    def generate(self, prompts, count):
        print("a library's words")
        os.write(1, b"and of one in C")
        if count == 13:
            raise ValueError("no thirteen")
        if os.fork() == 0:  # a worker that never ends by itself
            import signal
            signal.pause()
        return [[prompt[0] + i for i in range(count - (count == 7))] for prompt in prompts]

answers = claim_stdout()
serve(Counting(), answers)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A peer's script."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    path = tmp_path / "counting.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def peer(script: Path) -> Any:
    """One peer, with this test's interpreter."""
    from peer_process import ProcessPeer

    peer = ProcessPeer(sys.executable, script, [str(BENCHMARKS)], threads=1, environment={})
    yield peer
    peer.close()


def states(group: int) -> list[str]:
    """The states of a process group's members."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # gone meanwhile
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            found.append(fields[0])
    return found


def wait_until_still(group: int) -> None:
    """A stop reaches a process when it next enters the kernel, on another core maybe after the signal was sent."""
    deadline = time.monotonic() + 30
    while set(states(group)) != {"T"}:
        assert time.monotonic() < deadline, f"still not stopped: {states(group)}"
        time.sleep(0.01)


def test_a_peer_answers_with_exactly_the_tokens_asked_for_whatever_its_libraries_print(peer: Any) -> None:
    assert peer.name == "counting 1"
    assert peer.generate([[5], [9]], 3) == [[5, 6, 7], [9, 10, 11]]
    assert peer.generate([[2]], 1) == [[2]]
    with pytest.raises(RuntimeError, match=r"gave \[6\] tokens, asked for 7"):
        peer.generate([[1]], 7)


def test_a_peer_stands_still_between_calls_and_its_workers_end_with_it(peer: Any) -> None:
    group = peer._process.pid
    peer.generate([[1]], 2)
    wait_until_still(group)
    assert len(states(group)) == 2, "the peer and its worker"
    assert len(os.sched_getaffinity(group)) == 1
    peer.close()
    assert states(group) == []


def test_a_peer_that_ends_is_an_error_here(peer: Any) -> None:
    with pytest.raises(RuntimeError, match="ended with 1"):
        peer.generate([[1]], 13)


def test_no_peer_stays_behind_a_benchmark_that_was_killed(script: Path) -> None:
    killed = (
        "import sys\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path\n"
        "from peer_process import ProcessPeer\n"
        "peer = ProcessPeer(sys.executable, Path(sys.argv[1]), sys.argv[2:], threads=1, environment={})\n"
        "peer.generate([[1]], 2)\n"
        "print(peer._process.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", killed, str(script), str(BENCHMARKS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as benchmark:
        assert benchmark.stdout is not None
        group = int(benchmark.stdout.readline())
        wait_until_still(group)
        benchmark.kill()
    for _ in range(100):
        if not states(group):
            return
        time.sleep(0.1)
    os.killpg(group, signal.SIGKILL)
    pytest.fail(f"the peer stayed: {states(group)}")
