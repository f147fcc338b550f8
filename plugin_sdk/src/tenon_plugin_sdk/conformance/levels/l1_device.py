"""Level 1, device: memory, copies, order, events, errors, sleep, repeated opening."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from tenon_platforms.device import HOST, Fault
from tenon_platforms.pools import Pool
from tenon_platforms.shapes import ShapeKey

from ..compare import assert_equal
from ..profile import Profile
from ..registry import Case, Check, ConformanceError
from ..subject import Subject

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.uint8, torch.bool)
SLEEPING_BYTES = 4 << 20  # of each tensor that is put to sleep
SHAPES = ((0,), (1,), (3, 0, 2), (7, 5), (129,), (2, 3, 4, 5))


def facts(subject: Subject, profile: Profile, case: Case) -> None:
    """What the device says of itself is possible."""
    device = subject.device
    memory = device.memory()
    if not 0 <= memory.free <= memory.total or memory.total <= 0 or memory.peak < 0:
        raise ConformanceError(f"memory() says {memory}: free lies between 0 and total, peak is not negative")
    if not 0 < device.memory_share <= 1:
        raise ConformanceError(f"memory_share is {device.memory_share}: it lies between 0 and 1")
    if device.load_threads < 1 or device.process_model.processes_per_device < 1:
        raise ConformanceError("load_threads and processes_per_device are at least 1")
    if bad := {k: v for k, v in device.telemetry().items() if not isinstance(v, (int, float))}:
        raise ConformanceError(f"telemetry gives numbers by name, not {bad}")
    if device.shares_host_memory and (device.is_async or device.zeros((1,), torch.int32).device != HOST):
        raise ConformanceError(
            "shares_host_memory is said by a device whose tensors are the host's and whose calls return when their work"
            f" is done; is_async is {device.is_async}, and zeros lie on {device.zeros((1,), torch.int32).device}"
        )
    device.reset_peak()
    if device.memory().total != memory.total:
        raise ConformanceError("the total memory changed between two calls")


def tensors(subject: Subject, profile: Profile, case: Case) -> None:
    """Tensors are made with the shape and type asked for; zeros are zero."""
    dtype: torch.dtype = case.value
    for shape in SHAPES:
        for made in (subject.device.empty(shape, dtype), subject.device.zeros(shape, dtype)):
            if tuple(made.shape) != shape or made.dtype != dtype:
                raise ConformanceError(f"asked for {dtype} {list(shape)}, got {made.dtype} {list(made.shape)}")
        assert_equal(
            subject.to_host(subject.device.zeros(shape, dtype)),
            torch.zeros(shape, dtype=dtype),
            what=f"Device.zeros({shape}, {dtype})",
        )


def copies(subject: Subject, profile: Profile, case: Case) -> None:
    """Host to device, on the device, back: every bit, also of parts of tensors."""
    dtype: torch.dtype = case.value
    random = torch.Generator().manual_seed(1)
    for shape in SHAPES:
        drawn = torch.randint(0, 2 if dtype == torch.bool else 200, shape, generator=random)
        value = torch.randn(shape, generator=random).to(dtype) if dtype.is_floating_point else drawn.to(dtype)
        first, second = subject.to_device(value), subject.device.zeros(shape, dtype)
        if value.numel():
            subject.device.copy(second, first)
        assert_equal(subject.to_host(second), value, what=f"{dtype} {list(shape)} copied to the device, on it and back")
    whole = subject.device.zeros((6, 10), dtype)
    part = torch.ones((6, 4), dtype=dtype)
    subject.fill(whole[:, 3:7], part)
    want = torch.zeros((6, 10), dtype=dtype)
    want[:, 3:7] = part
    assert_equal(subject.to_host(whole), want, what=f"a {dtype} [6, 10] after a copy of ones into columns 3 to 7")


def order(subject: Subject, profile: Profile, case: Case) -> None:
    """Copies run in the order they were queued; after an event's wait its host buffer is free again."""
    device = subject.device
    buffers = [device.host_buffer((257,), torch.int32) for _ in range(3)]
    targets = [device.zeros((257,), torch.int32) for _ in range(2)]
    landing = device.host_buffer((257,), torch.int32)
    events: list[Any] = [None] * len(buffers)
    for number in range(profile.replays * 3):
        turn = number % len(buffers)
        if events[turn] is not None:
            events[turn].wait()
            if not events[turn].is_done():
                raise ConformanceError("an event that was waited for is not done")
        buffers[turn].fill_(number)
        device.copy(targets[0], buffers[turn])
        device.copy(targets[1], targets[0])
        device.copy(landing, targets[1])
        events[turn] = device.event()
        if number % 7 == 6:
            events[turn].wait()
            if not bool((landing == number).all()):
                raise ConformanceError(
                    f"after the event of copy {number} the host sees the {int(landing[0])} of an earlier one"
                )
    device.synchronize()
    with device.stream("copies"):
        device.copy(landing, targets[1])
        event = device.event()
    event.wait()
    if not bool((landing == profile.replays * 3 - 1).all()):
        raise ConformanceError("a copy on a side stream came back with other values")


def errors(subject: Subject, profile: Profile, case: Case) -> None:
    """An error inside an executable reaches the host by the next event at the latest, and the device goes on."""

    def broken(inputs: Any) -> Any:
        raise ValueError("planted by the conformance kit")

    executable = subject.platform.execution(subject.device).executable(broken, name="forward")
    key = ShapeKey(tokens=1, rows=1, logits=1, max_query=1, blocks=1)
    try:
        executable.run(key, subject.to_device(torch.zeros(1)))
        subject.device.synchronize()
    except Exception as error:
        if not isinstance(subject.device.classify_fault(error), Fault):
            raise ConformanceError("classify_fault answers a Fault") from error
    else:
        raise ConformanceError("a function that raised inside an executable: no error came by synchronize()")
    value = torch.arange(9, dtype=torch.int32)
    assert_equal(subject.to_host(subject.to_device(value)), value, what="a copy after a failed step")


def faults(subject: Subject, profile: Profile, case: Case) -> None:
    """Faults are classified: memory is memory, and what is unknown is some Fault."""
    if subject.device.classify_fault(MemoryError()) is not Fault.OUT_OF_MEMORY:
        raise ConformanceError("classify_fault(MemoryError()) is not OUT_OF_MEMORY: no room would ever be made")
    for error in (RuntimeError("x"), ValueError(""), KeyError("k"), OSError(5, "io")):
        if not isinstance(subject.device.classify_fault(error), Fault):
            raise ConformanceError(f"classify_fault({error!r}) answers no Fault")


def sleep(subject: Subject, profile: Profile, case: Case) -> None:
    """Pools give back what they say, at the same addresses they come back: weights as they were, a cache zeroed."""
    device = subject.device
    value = torch.arange(1, SLEEPING_BYTES // 4 + 1, dtype=torch.int32)
    with device.pool(Pool.WEIGHTS):
        weight = subject.to_device(value)
        made = weight + weight  # by an operation of the device's own
    with device.pool(Pool.KV_CACHE):
        cache = device.zeros((SLEEPING_BYTES,), torch.uint8)
    outside = subject.to_device(value[:1000])
    places = [tensor.data_ptr() for tensor in (weight, made, cache)]
    for pools in (tuple(Pool), (Pool.KV_CACHE,), (Pool.WEIGHTS,)):
        named = " and ".join(pools)
        subject.fill(cache, torch.full((SLEEPING_BYTES,), 7, dtype=torch.uint8))
        device.synchronize()
        before = device.memory()
        given_back = device.sleep(pools)
        if isinstance(given_back, bool) or not isinstance(given_back, int) or given_back < 0:
            raise ConformanceError(f"sleep of {named} answered {given_back!r}: it tells the bytes it gave back")
        if given_back and not before.is_host and device.memory().free - before.free < given_back // 2:
            raise ConformanceError(
                f"sleep of {named} says it gave {given_back} bytes back; {device.memory().free} are free, before"
                f" {before.free}"
            )
        if again := device.sleep(pools):
            raise ConformanceError(f"sleep of {named}, asleep already, gave {again} bytes back once more")
        assert_equal(subject.to_host(outside), value[:1000], what="a tensor of no pool, while pools sleep")
        for pool in reversed(pools):
            device.wake((pool,))
        device.wake(pools)  # awake already
        if [tensor.data_ptr() for tensor in (weight, made, cache)] != places:
            raise ConformanceError("tensors of a pool have other addresses after it woke up: captures hold the old")
        assert_equal(subject.to_host(weight), value, what=f"weights after {named} slept")
        assert_equal(subject.to_host(made), value * 2, what=f"weights that a kernel made, after {named} slept")
        held = 0 if Pool.KV_CACHE in pools and given_back else 7
        want = torch.full((SLEEPING_BYTES,), held, dtype=torch.uint8)
        assert_equal(subject.to_host(cache), want, what=f"the KV cache after {named} slept")
    assert_equal(subject.to_host(subject.to_device(value)), value, what="a copy after waking")


def reopen(subject: Subject, profile: Profile, case: Case) -> None:
    """Opened and closed again and again, a device works each time, and the one in use is not disturbed."""
    kept = subject.to_device(torch.arange(11, dtype=torch.int32))
    for _ in range(3):
        device = subject.platform.device(0)
        device.open()
        device.open()
        made = device.zeros((3,), torch.float32)
        device.synchronize()
        if tuple(made.shape) != (3,):
            raise ConformanceError("a reopened device makes no tensors")
        device.close()
        device.close()
    assert_equal(subject.to_host(kept), torch.arange(11, dtype=torch.int32), what="the first device's tensor")


def _dtypes(subject: Subject, profile: Profile) -> Iterable[Case]:
    return [Case(id=str(dtype).removeprefix("torch."), value=dtype) for dtype in DTYPES]


CHECKS = (
    Check(level="L1", name="facts", what="what the device says of itself", run=facts),
    Check(level="L1", name="tensors", what="tensors of every type and shape", cases=_dtypes, run=tensors),
    Check(level="L1", name="copies", what="copies keep every bit", cases=_dtypes, run=copies),
    Check(level="L1", name="order", what="copies and events in order", run=order),
    Check(level="L1", name="errors", what="errors reach the host", run=errors),
    Check(level="L1", name="faults", what="faults are classified", run=faults),
    Check(level="L1", name="sleep", what="sleep and wake", run=sleep),
    Check(level="L1", name="reopen", what="repeated opening and closing", run=reopen),
)
