"""Level 5, collectives: every operation on N ranks against float64, of nothing, uneven, and with a rank missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError
from tenon_platforms.platform import Platform
from tenon_platforms.torch_dtypes import to_torch

from ..compare import assert_close, assert_equal
from ..profile import Profile
from ..ranks.draws import INTEGERS, counts, drawn
from ..ranks.group import HangError, RankGroup
from ..registry import Case, Check, ConformanceError, NotApplicableError
from ..subject import Subject
from ..truth.rounding import Bounded, unit

LIMIT_S = 1.0  # what the kit sets as a group's time-out
HANG_S = 20.0  # after which a rank that waits counts as hanging: slack for a busy machine
MANY = 24


def sizes_of(subject: Subject, profile: Profile) -> list[int]:
    """Numbers of ranks that have a device each."""
    wanted = [2, 3, 4] if profile.wide else [2]
    if subject.device.process_model.spmd:
        return []
    return [size for size in wanted if _has_devices(subject.platform, size)]


def _has_devices(platform: Platform, size: int) -> bool:
    try:
        platform.rank_device(size - 1, size)
    except ConfigError:
        return False
    return True


def _group(subject: Subject, size: int) -> RankGroup:
    if not size:
        raise NotApplicableError("its collectives are its own, and there are not two devices to try them on")
    return RankGroup.of(subject, size)


def reduces(subject: Subject, profile: Profile, case: Case) -> None:
    """all_reduce and reduce_scatter: the sum over ranks, in place and scattered."""
    size, dtype = case.value
    group = _group(subject, size)
    for seed, shape in enumerate(_shapes(group, dtype, size), profile.seed * 50):
        want = _sum([_drawn(seed, rank, shape, dtype) for rank in range(size)], dtype)
        found = group.values("all_reduce", seed=seed, shape=shape, dtype=_name(dtype))
        for rank, value in enumerate(found):
            for part in ("returned", "kept"):
                _close(value[part], want, dtype, f"all_reduce of {shape} on rank {rank} of {size}, tensor {part}")
        found = group.values("reduce_scatter", seed=seed, shape=shape, dtype=_name(dtype))
        rows = shape[0] // size
        for rank, value in enumerate(found):
            mine = Bounded(want.value[rank * rows : (rank + 1) * rows], want.error[rank * rows : (rank + 1) * rows])
            _close(value, mine, dtype, f"reduce_scatter of {shape} on rank {rank} of {size}")


def moves(subject: Subject, profile: Profile, case: Case) -> None:
    """all_gather, broadcast, all_to_all, send and receive: every bit, at its place."""
    size, dtype = case.value
    group, name = _group(subject, size), _name(dtype)
    for seed, shape in enumerate(_shapes(group, dtype, size), profile.seed * 50):
        inputs = [_drawn(seed, rank, shape, dtype) for rank in range(size)]
        for rank, value in enumerate(group.values("all_gather", seed=seed, shape=shape, dtype=name)):
            _equal(value, torch.cat(inputs), f"all_gather of {shape} on rank {rank} of {size}")
        if not inputs[0].numel():
            continue
        for source in range(size):
            for rank, value in enumerate(group.values("broadcast", seed=seed, shape=shape, dtype=name, source=source)):
                for part in ("returned", "kept"):
                    _equal(value[part], inputs[source], f"broadcast from {source} on rank {rank}, tensor {part}")
        for rank, value in enumerate(group.values("ring", seed=seed, shape=shape, dtype=name)):
            _equal(value, inputs[rank - 1], f"send and receive of {shape}, rank {rank} of {size}")
    for seed, empty in ((profile.seed, False), (profile.seed + 1, False), (profile.seed + 2, True)):
        width = _aligned(group, dtype, 5)
        table = counts(seed, size, empty=empty)
        sent = [_drawn(seed, rank, [sum(table[rank]), width], dtype).split(table[rank]) for rank in range(size)]
        found = group.values("all_to_all", seed=seed, width=width, dtype=name, empty=empty)
        for rank, value in enumerate(found):
            _equal(value, torch.cat([rows[rank] for rows in sent]), f"all_to_all {table} on rank {rank}")


def order(subject: Subject, profile: Profile, case: Case) -> None:
    """Operations back to back, of different sizes, not waited for: none sees another's data."""
    size = case.value
    group = _group(subject, size)
    seed = 7 + profile.seed
    found = group.values("many", seed=seed, dtype="int32", times=MANY)
    want: list[Tensor] = []
    for number in range(MANY):
        shape = (1 + 37 * (number % 5),)
        want.append(sum_of(drawn(seed + number, rank, shape, torch.int32) for rank in range(size)))
        if number % 3 == 2:
            want.append(drawn(seed + 500 + number, number % size, (9,), torch.int32))
    for rank, values in enumerate(found):
        for number, (value, one) in enumerate(zip(values, want, strict=True)):
            _equal(value, one, f"operation {number} of {len(want)} back to back, rank {rank}")


def barrier(subject: Subject, profile: Profile, case: Case) -> None:
    """No rank leaves a barrier before the last has come."""
    size = case.value
    group = _group(subject, size)
    for last in range(size):
        times = group.values("barrier", wait=[0.3 if rank == last else 0.0 for rank in range(size)])
        came, left = max(time[0] for time in times), min(time[1] for time in times)
        if left < came:
            first = min(range(size), key=lambda rank: times[rank][1])
            raise ConformanceError(
                f"rank {first} of {size} left the barrier {came - left:.3f} s before rank {last} came: expected to wait"
            )


def agree(subject: Subject, profile: Profile, case: Case) -> None:
    """Ranks agree on the same text, and find any other."""
    size = case.value
    group = _group(subject, size)
    if not all(answer is True for answer in group.values("agree", texts=["plan"] * size)):
        raise ConformanceError("the ranks have the same text and do not agree")
    for odd in range(size):
        texts = ["plan" if rank != odd else "plan " for rank in range(size)]
        if any(group.values("agree", texts=texts)):
            raise ConformanceError(f"rank {odd} has another text, and ranks agree all the same")


def hang(subject: Subject, profile: Profile, case: Case) -> None:
    """A rank that stays away, or has died: the others raise, they do not wait for ever."""
    size = case.value
    absent = size - 1
    group = _group(subject, size)
    shape = [size, _aligned(group, None, 64)]
    group.values("all_reduce", seed=profile.seed, shape=shape, dtype="int32")  # with all there it works
    missing = "stays away"
    try:
        stay = {"seconds": HANG_S, "patience": LIMIT_S, "absent": absent}
        _must_raise(group.ask("stall", limit=HANG_S, but=absent, **stay), missing)
        missing = "has died"
        group.kill()
        group = _group(subject, size)
        group.end_one(absent)
        _must_raise(group.ask_rest("lost", absent, limit=HANG_S, patience=LIMIT_S), missing)
    except HangError as error:
        raise ConformanceError(
            f"an all_reduce among {size} ranks waits for rank {absent}, which {missing}: expected an error after the"
            f" {LIMIT_S} s of set_timeout, but {error}"
        ) from error
    finally:
        group.kill()


def _must_raise(answers: Sequence[dict[str, Any]], what: str) -> None:
    for place, answer in enumerate(answers):  # the rank that is not there is the last
        if answer["error"] is None:
            raise ConformanceError(f"a rank {what}, and rank {place} got an all_reduce without it: expected an error")


def alone(subject: Subject, profile: Profile, case: Case) -> None:
    """A group of one: every operation is the identity, and there is nobody to send to."""
    group = subject.platform.collectives(subject.device, rank=0, size=1, address="")
    value = drawn(profile.seed, 0, (4, 3), torch.float32)
    try:
        for name in ("all_reduce", "reduce_scatter", "all_gather", "broadcast"):
            found = subject.to_host(getattr(group, name)(subject.to_device(value)))
            assert_equal(found, value, what=f"{name} in a group of one")
        found = subject.to_host(group.all_to_all(subject.to_device(value), [4], [4]))
        assert_equal(found, value, what="all_to_all in a group of one")
        group.barrier()
        if not group.agree("plan"):
            raise ConformanceError("a group of one does not agree with itself")
        try:
            group.send(subject.to_device(value), 1)
        except Exception:  # noqa: BLE001 - any refusal will do
            return
        raise ConformanceError("a group of one sent something to rank 1")
    finally:
        group.close()


def sum_of(parts: Iterable[Tensor]) -> Tensor:
    """Their sum, of their type."""
    whole, *others = parts
    for other in others:
        whole = whole + other
    return whole


def _sum(parts: Sequence[Tensor], dtype: DType | None) -> Bounded:
    """The true sum, and what adding ranks one by one in the tensors' type may lose."""
    wide = torch.stack([part.double() for part in parts])
    lost = 0.0 if dtype is None else (len(parts) - 1) * unit(dtype)
    return Bounded(wide.sum(0), lost * wide.abs().sum(0))


def _shapes(group: RankGroup, dtype: DType | None, size: int) -> list[list[int]]:
    """First axes are multiples of the ranks: one row each, several, long, none."""
    row = _aligned(group, dtype, 1)
    return [[size, row], [3 * size, 7 * row], [size, 1021 * row], [0, 4 * row]]


def _aligned(group: RankGroup, dtype: DType | None, elements: int) -> int:
    """At least so many elements, and bytes as the flags ask for."""
    width = torch.int32.itemsize if dtype is None else to_torch(dtype).itemsize
    step = max(group.alignment // width, 1)
    return -(-elements // step) * step


def _drawn(seed: int, rank: int, shape: Sequence[int], dtype: DType | None) -> Tensor:
    return drawn(seed, rank, tuple(shape), torch.int32 if dtype is None else to_torch(dtype))


def _name(dtype: DType | None) -> str:
    return "int32" if dtype is None else dtype.value


def _tensor(plain: Any) -> Tensor:
    dtype = getattr(torch, plain["dtype"].removeprefix("torch."))
    return torch.tensor(plain["values"], dtype=torch.float64).view(plain["shape"]).to(dtype)


def _close(plain: Any, want: Bounded, dtype: DType | None, what: str) -> None:
    found = _tensor(plain)
    if dtype is None or found.dtype in INTEGERS:
        assert_equal(found, want.value.to(torch.int32), what=what)
    else:
        assert_close(found, want, dtype, what=what)


def _equal(plain: Any, want: Tensor, what: str) -> None:
    assert_equal(_tensor(plain), want, what=what)


def _typed(subject: Subject, profile: Profile) -> Iterable[Case]:
    for size in sizes_of(subject, profile) or [0]:
        for dtype in (*subject.capabilities.dtypes, None):
            yield Case(id=f"{size}-{_name(dtype)}" if size else _name(dtype), value=(size, dtype))


def _sized(subject: Subject, profile: Profile) -> Iterable[Case]:
    return [Case(id=f"{size}-ranks" if size else "", value=size) for size in sizes_of(subject, profile) or [0]]


CHECKS = (
    Check(level="L5", name="alone", what="a group of one is the identity", run=alone),
    Check(level="L5", name="reduces", what="sums over ranks against float64", cases=_typed, run=reduces),
    Check(level="L5", name="moves", what="what is moved keeps every bit", cases=_typed, run=moves),
    Check(level="L5", name="order", what="operations back to back", cases=_sized, run=order),
    Check(level="L5", name="barrier", what="a barrier holds", cases=_sized, run=barrier, has_seed=False),
    Check(level="L5", name="agree", what="ranks find different plans", cases=_sized, run=agree, has_seed=False),
    Check(level="L5", name="hang", what="a missing rank ends in an error", cases=_sized, run=hang, has_seed=False),
)
