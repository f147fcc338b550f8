"""What NVML says of every GPU, read by a process of its own, which prints it as JSON.

NVML keeps a thread of its driver's after it was closed, which a later fork would lose.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any, TypedDict

SECONDS = 20.0  # a driver that takes longer does not answer


class Facts(TypedDict):
    """One GPU. memory: bytes; address: on the PCI bus, with a domain of eight digits; driver: its version."""

    name: str
    uuid: str
    arch: str
    memory: int
    address: str
    driver: str


def read(nvml: Any) -> list[Facts] | None:
    """Every GPU in NVML's order; None where there is no driver, or it does not answer."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        return [_facts(nvml, index, driver) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def ask_apart() -> list[Facts] | None:
    """The same from a fresh process; None where NVML is not installed or does not answer."""
    ask = f"import sys; sys.path[:0] = {sys.path!r}; from {__name__} import main; main()"
    try:
        done = subprocess.run([sys.executable, "-I", "-c", ask], capture_output=True, timeout=SECONDS, check=False)
        found: list[Facts] | None = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return found


def _facts(nvml: Any, index: int, driver: str) -> Facts:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Facts(
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        arch=f"sm_{major}{minor}",
        memory=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        address=_text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower(),
        driver=driver,
    )


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)


def main() -> None:
    """Print them."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        print("null")
        return
    print(json.dumps(read(nvml)))
