"""Torch's import from outside: its libraries come in a thread without Python's lock, and nobody collects meanwhile."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit


def run(code: str) -> str:
    """What an interpreter of its own prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are loaded ahead on Linux only")
def test_libraries_are_loaded_ahead_by_a_thread_and_torch_is_not_imported() -> None:
    out = run(
        "import sys, threading\n"
        "from tenon_core.torch_import import preload_torch\n"
        "preload_torch()\n"
        "[thread.join() for thread in threading.enumerate() if thread.name == 'tenon-torch']\n"
        "print('torch' in sys.modules, 'libtorch_cpu' in open('/proc/self/maps').read())\n"
        "import torch\n"
        "print(torch.ones(2).sum().item())\n"
    )
    assert out.split() == ["False", "True", "2.0"]


def test_without_torch_nothing_is_loaded() -> None:
    out = run(
        "import threading\n"
        "import tenon_core.torch_import as one\n"
        "one.find_spec = lambda name: None\n"
        "one.preload_torch()\n"
        "print(threading.active_count())\n"
    )
    assert out.split() == ["1"]


@pytest.mark.parametrize("before", ["enable", "disable"])
def test_nothing_is_collected_while_torch_is_imported(before: str) -> None:
    out = run(
        "import gc, sys\n"
        "from tenon_core.torch_import import import_torch\n"
        f"gc.{before}()\n"
        "seen = []\n"
        "gc.callbacks.append(lambda phase, info: seen.append(phase))\n"
        "import_torch()\n"
        "count = len(seen)\n"
        "print('torch' in sys.modules, count, gc.isenabled(), gc.get_freeze_count())\n"
    )
    assert out.split() == ["True", "0", str(before == "enable"), "0"]
