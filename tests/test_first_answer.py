"""What the first answer of a process may cost: no platform's start-up drags in torch's compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
COMPILER = ("torch._dynamo", "torch._inductor", "sympy")  # seconds to import, and nothing here is compiled
ANSWER = """
import sys
from tenon_core import LLM, SamplingParams
llm = LLM(sys.argv[1], platform=sys.argv[2])
llm.generate(["a b c"], SamplingParams(max_tokens=8, ignore_eos=True))
print("after:", *sorted(name for name in sys.modules if name in sys.argv[3:]))
"""


def test_an_answer_imports_no_compiler(platform_name: str, tiny_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ANSWER, str(tiny_folder), platform_name, *COMPILER],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == ["after:"]
