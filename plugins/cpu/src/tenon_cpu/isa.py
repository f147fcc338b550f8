"""What this CPU computes natively, read from the kernel's own table. Torch-free.

Knows instruction sets and cores, not kernels. Linux tells through /proc/cpuinfo; elsewhere nothing is assumed and the
portable kernels are used.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # the last is Arm's
FP16_FLAGS = frozenset({"avx512_fp16", "amx_fp16", "asimdhp"})
CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class CPU:
    """One machine's processor. flags: as /proc/cpuinfo names them. cores: that this process may use, by the
    number of the first thread of each physical core; empty where the system does not say.
    """

    name: str
    machine: str
    flags: frozenset[str]
    physical_cores: int
    cores: tuple[int, ...] = ()

    @property
    def has_bf16(self) -> bool:
        """Whether products of bfloat16 are instructions; without them they cost many times a float32 product."""
        return bool(self.flags & BF16_FLAGS)

    @property
    def has_fp16(self) -> bool:
        """Whether products of float16 are instructions."""
        return bool(self.flags & FP16_FLAGS)

    @property
    def arch(self) -> str:
        """The widest instruction set worth naming."""
        names = ("amx_bf16", "avx512_bf16", "avx512_vnni", "avx512f", "avx2", "sve", "asimd")
        return next((name for name in names if name in self.flags), self.machine)


def part_of(cores: tuple[int, ...], part: int, parts: int) -> tuple[int, ...]:
    """The cores of one of `parts` parts; sizes differ by one at most, neighbours stay together."""
    each, more = divmod(len(cores), parts)
    start = part * each + min(part, more)
    return cores[start : start + each + (part < more)]


def read_cpu(text: str | None = None, usable: frozenset[int] | None = None) -> CPU:
    """The CPU that `text`, in the form of /proc/cpuinfo, describes; this machine's by default."""
    if text is None:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace") if CPUINFO.exists() else ""
    if usable is None:
        usable = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()
    cores: dict[tuple[str, ...], int] = {}
    name, flags = "", frozenset[str]()
    for block in text.strip().split("\n\n"):
        entry = {
            key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.splitlines()) if key
        }
        name = name or entry.get("model name", "")
        flags = flags or frozenset(entry.get("flags", entry.get("Features", "")).split())
        number = entry.get("processor", "")
        if number.isdigit() and (not usable or int(number) in usable):
            place = (entry.get("physical id", ""), entry.get("core id", number))
            cores.setdefault(place, int(number))
    count = len(cores) or len(usable) or os.cpu_count() or 1
    machine = platform.machine()
    return CPU(
        name=name or machine or "CPU",
        machine=machine,
        flags=flags,
        physical_cores=count,
        cores=tuple(number for _, number in sorted(cores.items(), key=lambda item: (item[0][:-1], item[1]))),
    )
