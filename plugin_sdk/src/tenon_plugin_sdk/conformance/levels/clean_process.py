"""Code run in a fresh interpreter: what a plugin does on import is seen only where nothing was imported before."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from ..registry import ConformanceError

TIMEOUT = 120.0


def run_clean(code: str, *arguments: str) -> Any:
    """Run code that prints one line of JSON last, and return it. Raises `ConformanceError` where it fails or hangs."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConformanceError(f"it hangs: nothing came within {TIMEOUT:.0f} s") from error
    if done.returncode:
        raise ConformanceError(f"a fresh process ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])
