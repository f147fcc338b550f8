"""Which function replays which op, and what a platform need not serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from tenon_platforms.dtypes import DType
from tenon_platforms.ops.linear import WeightScheme

from ..registry import NotApplicableError
from ..subject import Subject
from . import attention, products
from .case_file import RecordedCase

REPLAYS: dict[str, Callable[[Subject, RecordedCase], None]] = {
    "rms_norm": products.rms_norm,
    "add_rms_norm": products.add_rms_norm,
    "add_rms_norm_then": products.add_rms_norm_then,
    "merged_linear": products.merged_linear,
    "embedding": products.embedding,
    "activation_mul": products.activation_mul,
    "gated_mlp": products.gated_mlp,
    "moe_layer": products.moe_layer,
    "rope": attention.rope,
    "qk_norm_rope_kv_write": attention.qk_norm_rope_kv_write,
    "attention": attention.attention,
}


def replay(subject: Subject, case: RecordedCase) -> None:
    """Run one case. Raises `ConformanceError` where it is wrong, `NotApplicableError` for what is not claimed."""
    claims = subject.capabilities
    for value in _parts(case.spec):
        if isinstance(value, WeightScheme) and claims.scheme(value.id) is None:
            raise NotApplicableError(f"the platform does not claim weights of {value.id}")
    for name in ("dtype", "kv_dtype"):
        dtype = getattr(case.spec, name, None)
        claimed = claims.dtypes if name == "dtype" else claims.kv_dtypes
        if isinstance(dtype, DType) and dtype not in claimed:
            raise NotApplicableError(f"the platform does not claim {name} {dtype}")
    REPLAYS[case.spec.op](subject, case)


def _parts(value: Any) -> Iterator[Any]:
    """A spec and everything in it."""
    yield value
    if is_dataclass(value):
        for item in fields(value):
            yield from _parts(getattr(value, item.name))
    elif isinstance(value, tuple):
        for held in value:
            yield from _parts(held)
