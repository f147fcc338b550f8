"""Steps rehearsed for a device that is not there: kernels are compiled by threads, counted, and not launched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit
HERE = Path(__file__).parent


def rehearsed(cache: Path, *how: str) -> dict[str, str]:
    """What `rehearse.py` printed, by the first word of a line."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    run = subprocess.run(
        [sys.executable, str(HERE / "rehearse.py"), str(cache), *how],
        env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return dict(line.split(" ", 1) for line in run.stdout.splitlines())


def test_a_rehearsal_compiles_everything_once_and_launches_nothing(tmp_path: Path) -> None:
    found = rehearsed(tmp_path)
    # gemv of one token, of two, and the activation of either width: 128 / 2 and 64 / 2 features
    assert found["first"] == "4 3 {0}"
    assert found["again"] == "4 1"  # the first decode finds its kernels, the others are not asked
    assert found["launched"] == "True"  # and that was no rehearsal: there is no device
    # however one ends, the next is as ever, and nothing of it stays
    assert (found["error"], found["interrupt"]) == ("ValueError", "KeyboardInterrupt")
    assert found["after"] == "True True"
    assert found["beside"] == "True"
    assert found["told"] == "False True False"
    assert found["tries"] == "1 True 2"
    assert found["heard"] == "1 1"


def test_steps_of_a_kind_that_a_cache_has_are_not_rehearsed(tmp_path: Path) -> None:
    rehearsed(tmp_path)
    found = rehearsed(tmp_path)
    assert found["first"] == "0 2 {0}"  # one decode and one prompt
    assert found["again"] == "0 1"


def test_a_triton_that_hands_no_compilations_over_is_left_alone(tmp_path: Path) -> None:
    found = rehearsed(tmp_path, "alone")
    assert (found["first"], found["again"], found["launched"]) == ("0 0 set()", "0 0", "True")
