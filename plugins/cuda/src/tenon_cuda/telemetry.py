"""What a GPU tells of itself while it works, through NVML where that is installed; by name with the unit as suffix.

A handle is kept open: this is asked for by metrics, every few seconds, never in a step.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


class Telemetry:
    """Figures of one device. nvml: the module, for tests; None: import it, and say nothing where it is missing."""

    def __init__(self, uuid: str, nvml: Any = None) -> None:
        self._nvml = nvml
        self._handle: Any = None
        try:
            self._nvml = nvml or importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except ImportError:
            return
        except self._nvml.NVMLError:
            self._handle = None

    def read(self) -> dict[str, float]:
        """A figure that this card does not have is left out."""
        if self._handle is None:
            return {}
        nvml, handle = self._nvml, self._handle
        asked: dict[str, Callable[[], Any]] = {
            "utilization_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "ecc_uncorrected_errors": lambda: nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            ),
        }
        figures: dict[str, float] = {}
        for name, ask in asked.items():
            try:
                figures[name] = float(ask())
            except nvml.NVMLError:
                continue
        return figures

    def close(self) -> None:
        """Let go of the library."""
        if self._handle is not None:
            self._handle = None
            self._nvml.nvmlShutdown()
