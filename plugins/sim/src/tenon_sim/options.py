"""The platform's options as one value. Their schema, defaults and help are in `platform.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tenon_platforms.device import Fault
from tenon_platforms.errors import ConfigError

from .faults import FAULTS

MAX_DEVICES = 8  # kMaxDevices of native/memory.h
CHARACTERS = ("static", "dynamic", "minimal")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """See `platform.toml`."""

    character: str = "static"
    seed: int = 0
    delay_ms: float = 0.0
    compile_ms: float = 0.0
    fault_step: int = 0
    fault_kind: str = "request"
    memory_mb: int = 4096
    devices: int = 1

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> SimOptions:
        """From the operator's options; raises `ConfigError` for one that is unknown or out of range."""
        known = {item.name for item in fields(cls)}
        for name in options:
            if name not in known:
                raise ConfigError(f"platform sim has no option {name!r}: known are {', '.join(sorted(known))}")
        made = cls(**options)
        if made.character not in CHARACTERS:
            raise ConfigError(f"sim.character is {made.character!r}: expected one of {', '.join(CHARACTERS)}")
        if made.fault_kind not in FAULTS:
            raise ConfigError(f"sim.fault_kind is {made.fault_kind!r}: expected one of {', '.join(FAULTS)}")
        for name in ("delay_ms", "compile_ms", "fault_step"):
            if getattr(made, name) < 0:
                raise ConfigError(f"sim.{name} is {getattr(made, name)}: it must not be negative")
        if made.memory_mb < 1:
            raise ConfigError(f"sim.memory_mb is {made.memory_mb}: it must be at least 1")
        if not 1 <= made.devices <= MAX_DEVICES:
            raise ConfigError(f"sim.devices is {made.devices}: it must be from 1 to {MAX_DEVICES}")
        return made

    @property
    def fault(self) -> Fault:
        """What the simulated fault means."""
        return FAULTS[self.fault_kind]
