"""Many open streams, by the load script: none lost, mixed up or stuck, and what the front end adds to a token."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from real_model import SMOLLM2

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "streams.py"


def run(*arguments: str, seconds: float) -> str:
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


@pytest.mark.e2e
def test_a_few_streams() -> None:
    """With ten times the slack: other tests run beside it."""
    output = run("--streams", "64", "--tokens", "20", "--step-ms", "50", "--limit-ms", "3", seconds=240)
    assert "lost 0, mixed up 0" in output


@pytest.mark.e2e
@pytest.mark.full
def test_256_streams_on_a_null_engine() -> None:
    assert "limit 0.3 ms" in run("--step-ms", "250", seconds=400)


@pytest.mark.e2e
def test_500_streams_of_a_model_for_a_minute(smollm2_path: Path) -> None:
    """Half of them leave at random. Short answers: the machine's two cores serve them all in a round of seconds."""
    output = run("--model", SMOLLM2, "--streams", "500", "--seconds", "60", "--tokens", "6", seconds=900)
    assert "every block is free again" in output and "'lost': 0, 'mixed up': 0" in output


@pytest.mark.e2e
@pytest.mark.full
def test_500_streams_of_a_model(smollm2_path: Path) -> None:
    output = run("--model", SMOLLM2, "--streams", "500", "--seconds", "600", "--tokens", "24", seconds=3000)
    assert "every block is free again" in output
