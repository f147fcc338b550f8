"""What an exception out of a step means on a CUDA device.

Most CUDA errors are sticky: after an illegal access every later call fails, and only a new process helps. Running out
of memory is not, and neither is a refused launch. Judged by torch's exception types, then by error code, then by text.
"""

from __future__ import annotations

import torch

from tenon_platforms.device import Device, Fault

OUT_OF_MEMORY_CODE = 2  # cudaErrorMemoryAllocation
REFUSED_CODES = frozenset({1, 9, 98, 701})  # invalid value, configuration, function, resources: nothing was launched
CAPTURE_CODES = frozenset(range(900, 909))  # cudaErrorStreamCapture*: the graph is void, the context is not

OUT_OF_MEMORY_TEXTS = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
REFUSED_TEXTS = ("out of resource", "invalid configuration argument", "too many resources requested")
CAPTURE_TEXTS = ("stream is capturing", "during capture", "StreamCapture", "capture_end")
LOST_TEXTS = (
    "an illegal memory access",
    "an illegal instruction",
    "device-side assert",
    "unspecified launch failure",
    "misaligned address",
    "invalid program counter",
    "hardware stack error",
    "uncorrectable ECC",
    "uncorrectable NVLink",
    "launch timed out",
    "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUBLAS_STATUS_INTERNAL_ERROR",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "has fallen off the bus",
    "no CUDA-capable device",
    "driver shutting down",
    "CUDA error",
    "CUDA driver error",
    "NCCL",
)


def classify(error: BaseException) -> Fault:
    """Walks the causes too: a kernel library may wrap the runtime's error in its own."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        found = _classify_one(current)
        if found is not None:
            return found
        seen.add(id(current))
        current = current.__cause__ or current.__context__
    return Device.classify_fault(Device(), error)


def _classify_one(error: BaseException) -> Fault | None:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return Fault.OUT_OF_MEMORY
    if type(error).__name__ == "DistBackendError":
        return Fault.LOST
    text = str(error)
    code = getattr(error, "error_code", None)
    if code == OUT_OF_MEMORY_CODE or _has(text, OUT_OF_MEMORY_TEXTS):
        return Fault.OUT_OF_MEMORY
    if code in CAPTURE_CODES or _has(text, CAPTURE_TEXTS):
        return Fault.RETRYABLE
    if code in REFUSED_CODES or _has(text, REFUSED_TEXTS):
        return Fault.REQUEST
    if isinstance(error, torch.AcceleratorError) or _has(text, LOST_TEXTS):
        return Fault.LOST
    return None


def _has(text: str, marks: tuple[str, ...]) -> bool:
    return any(mark in text for mark in marks)
