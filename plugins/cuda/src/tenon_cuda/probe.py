"""Which NVIDIA GPUs are here, asking torch nothing: NVML where it is installed, else the driver's files.

Creates no context and is safe before a fork: NVML is asked by a process of its own, `/proc` and `/sys` are only read.
NVML counts in PCI order; a visibility variable is honoured as CUDA does (indices or beginnings of UUIDs, up to the
first unknown).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tenon_platforms.device import DeviceInfo

from .nvml_facts import Facts, ask_apart, read

VISIBILITY = "CUDA_VISIBLE_DEVICES"
DRIVER_FOLDER = "proc/driver/nvidia/gpus"
DRIVER_VERSION = "proc/driver/nvidia/version"  # NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun ...


def probe(root: Path = Path("/"), environ: Mapping[str, str] | None = None, nvml: Any = None) -> tuple[DeviceInfo, ...]:
    """The devices this process may use, numbered as it sees them. nvml: a module, for tests."""
    environ = os.environ if environ is None else environ
    found = _from_nvml(nvml, root)
    if found is None:
        found = _from_driver_files(root)
    return tuple(replace(info, id=index) for index, info in enumerate(visible(found, environ.get(VISIBILITY))))


def visible(found: list[DeviceInfo], value: str | None) -> list[DeviceInfo]:
    """Those that the variable's value lets through, in its order."""
    if value is None:
        return found
    chosen: list[DeviceInfo] = []
    for entry in (part.strip() for part in value.split(",")):
        if entry.isdigit():
            match = [info for info in found if info.id == int(entry)]
        else:
            match = [info for info in found if entry and info.uuid.startswith(entry)]
        if len(match) != 1 or match[0] in chosen:
            break
        chosen += match
    return chosen


def _from_nvml(nvml: Any, root: Path) -> list[DeviceInfo] | None:
    """What a fresh process reads, where `nvml` is None."""
    facts = ask_apart() if nvml is None else read(nvml)
    return None if facts is None else [_device(index, one, root) for index, one in enumerate(facts)]


def _device(index: int, facts: Facts, root: Path) -> DeviceInfo:
    return DeviceInfo(
        id=index,
        name=facts["name"],
        uuid=facts["uuid"],
        arch=facts["arch"],
        memory=facts["memory"],
        numa_node=_numa_node(root, facts["address"]),
        driver=_driver_text(facts["driver"]),
    )


def _from_driver_files(root: Path) -> list[DeviceInfo]:
    """From `/proc/driver/nvidia/gpus/ADDRESS/information`; architecture and memory are not told there."""
    devices = []
    driver = _driver_text(_kernel_module_version(root))
    for index, folder in enumerate(sorted((root / DRIVER_FOLDER).glob("*"))):
        facts = _facts(folder / "information")
        devices.append(
            DeviceInfo(
                id=index,
                name=facts.get("Model", "NVIDIA GPU"),
                uuid=facts.get("GPU UUID", ""),
                numa_node=_numa_node(root, folder.name.lower()),
                driver=driver,
            )
        )
    return devices


def _kernel_module_version(root: Path) -> str:
    """`580.65.06` of the driver's own file, "" where it does not say. The open module has a longer name, before it."""
    line = _facts(root / DRIVER_VERSION).get("NVRM version", "")
    found = re.search(r"\s(\d+(?:\.\d+)+)\s", f"{line} ")
    return found[1] if found else ""


def _driver_text(version: str) -> str:
    return f"NVIDIA {version}" if version else ""


def _facts(file: Path) -> dict[str, str]:
    try:
        lines = file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _numa_node(root: Path, address: str) -> int | None:
    """The kernel's answer, where it has one. NVML writes the PCI domain with eight digits, the kernel with four."""
    domain, _, rest = address.partition(":")
    try:
        node = int((root / f"sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
