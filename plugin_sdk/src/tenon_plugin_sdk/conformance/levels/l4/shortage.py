"""Being short of memory: what does not fit is refused or classified, and what fits works afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tenon_platforms.device import Fault
from tenon_platforms.errors import CapacityError, TenonError

from ...engines import prompts_of, running
from ...models.store import ModelStore
from ...profile import Profile
from ...registry import Case, Check, ConformanceError, NotApplicableError
from ...subject import Subject

HOG_BYTES = 2**26
MOST_POOL = 2**33  # bytes: tiny blocks of a larger pool are too many to keep books of


def too_large(subject: Subject, profile: Profile, case: Case) -> None:
    """A KV pool as large as the whole device is refused with a remedy, or is really there; then a small one works."""
    store = ModelStore.of(subject)
    path = store.tiny("llama").path
    memory = subject.device.memory()
    total = memory.total
    sizes = [total * 4]
    if not memory.is_host and total <= MOST_POOL:
        sizes.append(total - 2**16)  # more than is free, once the weights are there
    for size in sizes:
        try:
            with running(subject, path, kv_cache_memory=size) as engine:
                engine.generate(prompts_of((9,)), max_tokens=4)
        except TenonError as error:
            if not isinstance(error, CapacityError) or not error.remedy:
                raise ConformanceError(
                    f"a KV pool of {size} bytes on a device of {total} fails with {type(error).__name__}: {error};"
                    " expected CapacityError with a remedy: is the error of the allocation classified OUT_OF_MEMORY?"
                ) from error
        except Exception as error:
            raise ConformanceError(
                f"a KV pool of {size} bytes on a device of {total} fails with {type(error).__name__}: {error}"
            ) from error
    with running(subject, path, num_blocks=32, max_model_len=64) as engine:
        engine.generate(prompts_of((9, 40)), max_tokens=8)


def exhausted(subject: Subject, profile: Profile, case: Case) -> None:
    """What does not fit into the device raises an error that is classified as memory; then what fits works."""
    device = subject.device
    memory = device.memory()
    total = memory.total
    held: list[Any] = []
    try:
        for _ in range(3):
            held.append(device.empty((total // 2,), torch.uint8))  # may be lazy: pages count when they are written
    except Exception as error:
        if device.classify_fault(error) is not Fault.OUT_OF_MEMORY:
            raise ConformanceError(
                f"more memory than there is: {type(error).__name__}: {error} is classified"
                f" {device.classify_fault(error).value}, not out-of-memory"
            ) from error
    else:
        if not memory.is_host:
            raise ConformanceError(f"{3 * (total // 2)} bytes could be had of a device that has {total}")
    finally:
        held.clear()
    small = subject.to_device(torch.arange(100, dtype=torch.int32))
    if subject.to_host(small).tolist() != list(range(100)):
        raise ConformanceError("after running out of memory, a small tensor comes back with other values")


def hog(subject: Subject, profile: Profile, case: Case) -> None:
    """Someone else takes the device's memory while an engine runs: it serves on, or fails its requests and recovers."""
    (prompt,) = prompts_of((40,), seed=profile.seed)
    path = ModelStore.of(subject).tiny("llama").path
    with running(subject, path, num_blocks=32, max_model_len=64) as engine:
        device = engine.link.device
        if device.memory().is_host:
            raise NotApplicableError("the device's memory is the host's: filling it would end other processes")
        before = engine.generate([prompt], max_tokens=16)
        held = list(_fill(device))
        engine.submit(10, prompt, max_tokens=16)
        engine.run()
        held.clear()
        if engine.generate([prompt], first_id=20, max_tokens=16) != before:
            raise ConformanceError("after memory was short, the same request gives other tokens")


def _fill(device: Any) -> Iterator[Any]:
    """Take memory in ever smaller pieces until nothing is left; what has no end is an error, and is not waited for."""
    size, taken, total = HOG_BYTES, 0, device.memory().total
    while size >= 2**12:
        try:
            yield device.empty((size,), torch.uint8)
        except Exception as error:
            if device.classify_fault(error) is not Fault.OUT_OF_MEMORY:
                raise
            size //= 4
            continue
        taken += size
        if taken > total + HOG_BYTES:
            raise ConformanceError(
                f"{taken} bytes could be had of a device that has {total}, at last in pieces of {size}: memory of the"
                " host, which is taken as it is written, is said in `MemoryInfo.is_host`"
            )


CHECKS = (
    Check(
        level="L4",
        name="exhausted",
        what="running out of memory is classified and survived",
        run=exhausted,
        has_seed=False,
    ),
    Check(
        level="L4",
        name="too_large",
        what="a pool that does not fit is refused with a remedy",
        run=too_large,
        has_seed=False,
    ),
    Check(level="L4", name="hog", what="memory taken while an engine runs", run=hog, has_seed=False),
)
