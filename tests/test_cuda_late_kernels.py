"""No step compiles a kernel once the CUDA platform's engine is ready: the start has asked for every launch's key.

A step that waits for a compiler holds every request up for a second. What decides: the table's ways by tokens and rows,
constants of a launch, and what Triton specializes, the values and alignments of its arguments.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.e2e
HERE = Path(__file__).parent
FULL = pytest.mark.full


@pytest.mark.parametrize(
    "case", ["8b", pytest.param("8b-fp8", marks=FULL), "0.6b", pytest.param("small steps", marks=FULL)]
)
def test_nothing_is_compiled_after_ready(case: str, tmp_path: Path) -> None:
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), *sys.path))), "TRITON_CACHE_DIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, str(HERE / "late_kernels.py"), case],
        env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert not found["late"], "\n".join(found["late"])
    assert found["counted"] == 0 and found["ready"] > 30
    assert found["mixed"] > 50, "steps of many kinds"
