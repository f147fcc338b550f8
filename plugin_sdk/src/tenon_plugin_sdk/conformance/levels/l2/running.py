"""Running a kernel as the kit does: guarded inputs, results against the bound, flags held to what they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import Kernel, WeightUse
from tenon_platforms.ops.linear import Dense, WeightScheme

from ...buffers import Buffers
from ...cases.draws import RowsDraw, healthy_rows
from ...cases.weights import to_device
from ...compare import assert_close
from ...registry import ConformanceError
from ...subject import Subject
from ...truth.rounding import Bounded, unit

Call = Callable[[Mapping[str, Tensor]], Any]
HALF_EPS = 2.0**-10


def weight_error(scheme: WeightScheme, dtype: DType) -> float:
    """What an element of a stored weight may lose before the product.

    A dense weight of another type is rounded to the linear's; a block's scale is a float16, and so its weights may be.
    """
    if isinstance(scheme, Dense):
        return 0.0 if scheme.stored == dtype else unit(dtype)
    return max(unit(dtype), HALF_EPS)


def bind(subject: Subject, kernel: Kernel, weights: Any, op: str) -> Any:
    """Prepared weights."""
    with subject.device.inference_context():
        return kernel.bind(to_device(subject, weights), WeightUse(op=op, name="conformance.weight"))


def check_rows(
    subject: Subject,
    kernel: Kernel,
    draw: RowsDraw,
    rows: Mapping[str, Tensor],
    call: Call,
    want: Sequence[tuple[str, Bounded, DType]],
    *,
    certain: Tensor | None = None,
) -> None:
    """Call a kernel on guarded rows and hold it to the truth and to its flags.

    rows: host inputs whose first axis is the tokens. call: runs the kernel on their device copies. want: name, truth
    and type of every output. certain: bool [tokens], rows whose result does not hang on a near tie.
    """
    with subject.device.inference_context():
        buffers = Buffers(subject)
        given = {name: buffers.put(name, value, draw.layout) for name, value in rows.items()}
        found = _outputs(subject, call(given))
        if len(found) != len(want):
            raise ConformanceError(f"{kernel.name} returned {len(found)} outputs, expected {len(want)}")
        for out, (name, truth, dtype) in zip(found, want, strict=True):
            valid = healthy_rows(draw, truth.value.dim())
            if certain is not None:
                valid = valid & certain.view(-1, *[1] * (truth.value.dim() - 1))
            assert_close(out, truth, dtype, what=f"{name} of {kernel.name}", valid=valid)
        buffers.check(may_change=kernel.flags.in_place)
        if draw.tokens and not kernel.flags.in_place and draw.poisoned_row is None:
            _check_flags(subject, kernel, draw, given, call, found)


def _check_flags(
    subject: Subject, kernel: Kernel, draw: RowsDraw, given: Mapping[str, Tensor], call: Call, first: list[Tensor]
) -> None:
    if kernel.flags.deterministic:
        again = _outputs(subject, call(given))
        if not all(_same_bits(a, b) for a, b in zip(first, again, strict=True)):
            raise ConformanceError(f"{kernel.name} says it is deterministic, but a second run gave other bits")
    if kernel.flags.batch_invariant and draw.tokens > 1:
        place = draw.seed % draw.tokens
        alone = _outputs(subject, call({name: value[place : place + 1] for name, value in given.items()}))
        if not all(_same_bits(a[place : place + 1], b) for a, b in zip(first, alone, strict=True)):
            raise ConformanceError(
                f"{kernel.name} says it is batch-invariant, but row {place} of {draw.tokens} has other bits when alone"
            )


def _outputs(subject: Subject, result: Any) -> list[Tensor]:
    parts = result if isinstance(result, (tuple, list)) else (result,)
    return [subject.to_host(part) for part in parts]


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
