"""What an exception means: by torch's own types, by error code, by text, and through wrappers."""

from __future__ import annotations

import pytest
import torch

from tenon_cuda.faults import classify
from tenon_platforms.device import Fault

pytestmark = pytest.mark.unit


def accelerator_error(text: str, code: int | None = None) -> Exception:
    error = torch.AcceleratorError(text)
    if code is not None:
        error.error_code = code  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), Fault.OUT_OF_MEMORY),
        (MemoryError(), Fault.OUT_OF_MEMORY),
        (accelerator_error("CUDA error: out of memory"), Fault.OUT_OF_MEMORY),
        (accelerator_error("CUDA error", 2), Fault.OUT_OF_MEMORY),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED in cublasCreate"),
            Fault.OUT_OF_MEMORY,
        ),
        (accelerator_error("CUDA error: an illegal memory access was encountered", 700), Fault.LOST),
        (accelerator_error("CUDA error: device-side assert triggered"), Fault.LOST),
        (accelerator_error("CUDA error: unknown"), Fault.LOST),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), Fault.LOST),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), Fault.LOST),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"), Fault.LOST),
        (torch.distributed.DistBackendError("NCCL error: unhandled cuda error"), Fault.LOST),
        (accelerator_error("CUDA error: operation not permitted when stream is capturing", 900), Fault.RETRYABLE),
        (accelerator_error("CUDA error: invalid configuration argument", 9), Fault.REQUEST),
        (RuntimeError("out of resource: shared memory, Required: 300000, Hardware limit: 232448"), Fault.REQUEST),
        (ValueError("a shape"), Fault.REQUEST),
    ],
)
def test_a_fault_is_told_by_what_torch_raises(error: Exception, fault: Fault) -> None:
    assert classify(error) is fault


def test_the_cause_counts_where_the_wrapper_says_nothing() -> None:
    outer = ValueError("a step failed")
    outer.__cause__ = torch.OutOfMemoryError("CUDA out of memory")
    assert classify(outer) is Fault.OUT_OF_MEMORY
    looped = ValueError("a")
    looped.__context__ = ValueError("b")
    looped.__context__.__context__ = looped
    assert classify(looped) is Fault.REQUEST
