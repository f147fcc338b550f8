"""Every kernel compiles for several architectures with no device in the machine, and keeps its registers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit
HERE = Path(__file__).parent
QUICK = ("norm", "rope", "draw", "cut", "gemv", "tiles", "tiles normed", "normed gemv", "grouped", "sort")  # 25 s


def compiled(target: str, *names: str) -> dict[str, str]:
    """The line printed for each kernel."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    run = subprocess.run(
        [sys.executable, str(HERE / "ahead_of_time.py"), target, *names],
        env=env, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return {line.split(" warps=")[0]: line for line in run.stdout.splitlines()}


def no_spills(lines: dict[str, str]) -> None:
    for line in lines.values():
        found = re.search(r"spills=(\S+)", line)
        assert found
        assert found.group(1) in ("0", "?"), line


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
def test_one_of_each_kind(target: str) -> None:
    lines = compiled(target, *QUICK)
    assert set(lines) == set(QUICK)
    no_spills(lines)


@pytest.mark.full
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "cuda:100", "hip:gfx942"])
def test_all(target: str) -> None:
    lines = compiled(target)
    assert len(lines) > 25
    no_spills(lines)
