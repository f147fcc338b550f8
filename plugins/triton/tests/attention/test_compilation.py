"""Every attention kernel compiles ahead of time, without spills and within the device's fast memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compile_attention.py")
SHARED = {"cuda:80": 163, "cuda:90": 227, "cuda:100": 227, "cuda:120": 99, "hip:gfx942": 64, "hip:gfx950": 160,
          "hip:gfx1100": 64}  # fmt: skip
LINE = re.compile(
    r"(?P<name>.+) warps=\d+ stages=\d+ shared=(?P<shared>\d+) spills=(?P<spills>\S+)(?: stores=(?P<stores>\S+))?"
)


def compiled(target: str, *names: str) -> list[re.Match[str]]:
    """What the script says of each kernel; fails with its output where one does not compile."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, str(SCRIPT), target, *names]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [match for line in done.stdout.splitlines() if (match := LINE.fullmatch(line))]
    assert found, done.stdout
    return found


def check(target: str, *names: str) -> None:
    for kernel in compiled(target, *names):
        assert int(kernel["shared"]) <= SHARED[target] * 1024, kernel[0]
        assert kernel["spills"] in ("0", "?"), kernel[0]


@pytest.mark.unit
def test_the_first_kernels_compile() -> None:
    check("cuda:90", "decode llama", "decode llama apart", "strands llama", "long llama apart", "write llama")
    check("hip:gfx950", "decode llama")


@pytest.mark.unit
def test_attention_over_an_e4m3_cache_compiles() -> None:
    """Under bfloat16 queries. What is written is bounded by minima that keep NaN, and rounded to nearest even."""
    check("cuda:90", "decode float8", "decode float8 apart", "long float8 apart")
    (write,) = compiled("cuda:90", "write float8")
    assert write["stores"] == "cvt.rn.satfinite.e4m3x2.f32,max.NaN.f32,min.NaN.f32"


@pytest.mark.full
@pytest.mark.parametrize("target", SHARED)
def test_all_kernels_compile(target: str) -> None:
    check(target)
