"""Torch operations that stand between a step's kernels, as native calls with the same bits; for `tape.Recorder`.

Allocations, lookups by row, scattered writes, and arithmetic with one number. An operation whose arguments are not of
the shape and type computed here is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .step_calls import kernel

aten = torch.ops.aten
Empty = Callable[[tuple[int, ...], torch.dtype], Tensor]
NOT_RECORDED = object()
MULTIPLY, DIVIDE, ADD_INT, LESS_INT = 2, 3, 0, 1  # as ScalarParams numbers them


def record(func: Any, args: Any, kwargs: Any, empty: Empty) -> Any:
    """The result of `func(*args, **kwargs)`, computed by a recorded kernel or allocated; NOT_RECORDED otherwise."""
    run = OPERATIONS.get(func)
    return NOT_RECORDED if run is None else run(empty, *args, **kwargs)


def _empty(empty: Empty, size: Any, *, dtype: Any = None, device: Any = None, **rest: Any) -> Any:
    if (device is not None and torch.device(device).type != "cpu") or _unusual(rest):
        return NOT_RECORDED
    return empty(tuple(size), dtype or torch.get_default_dtype())


def _empty_like(empty: Empty, like: Tensor, *, dtype: Any = None, **rest: Any) -> Any:
    if not like.is_contiguous() or _unusual(rest):
        return NOT_RECORDED
    return empty(tuple(like.shape), dtype or like.dtype)


def _new_empty(empty: Empty, like: Tensor, size: Any, *, dtype: Any = None, **rest: Any) -> Any:
    return NOT_RECORDED if _unusual(rest) else empty(tuple(size), dtype or like.dtype)


def _unusual(rest: dict[str, Any]) -> bool:
    layout = rest.pop("layout", None)
    rest.pop("device", None)
    memory_format = rest.pop("memory_format", None)
    plain = layout in (None, torch.strided)
    plain &= memory_format in (None, torch.contiguous_format, torch.preserve_format)
    return not plain or any(rest.values())


def _contiguous(empty: Empty, x: Tensor, *, memory_format: Any = torch.contiguous_format) -> Any:
    return x if x.is_contiguous() and memory_format == torch.contiguous_format else NOT_RECORDED


def _index_select(empty: Empty, source: Tensor, dim: int, index: Tensor) -> Any:
    if dim != 0 or not source.is_contiguous() or not _is_index(index):
        return NOT_RECORDED
    found = empty((index.shape[0], *source.shape[1:]), source.dtype)
    _gather(source, found, index, line=source[0].nbytes, scatters=False)
    return found


def _index_put(empty: Empty, target: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Any:
    fits = len(indices) == 1 and not accumulate and target.is_contiguous() and values.is_contiguous()
    if not fits or not _is_index(indices[0]) or values.dtype != target.dtype:
        return NOT_RECORDED
    count = indices[0].shape[0]
    one = count == 1 and values.shape == target.shape[1:]  # torch strips a leading 1 from what is assigned
    if not one and values.shape != (count, *target.shape[1:]):
        return NOT_RECORDED
    _gather(values, target, indices[0], line=target[0].nbytes, scatters=True)
    return target


def _gather(source: Tensor, target: Tensor, index: Tensor, *, line: int, scatters: bool) -> None:
    kernel("gather")(source=source, target=target, index=index, count=index.shape[0], line=line, scatters=scatters)


def _is_index(index: Tensor | None) -> bool:
    return index is not None and index.dtype == torch.int32 and index.dim() == 1 and index.is_contiguous()


def _add(empty: Empty, x: Tensor, amount: Any, *, alpha: int = 1) -> Any:
    if x.dtype != torch.int32 or type(amount) is not int or alpha != 1:
        return NOT_RECORDED
    return _scalar(empty, x, ADD_INT, torch.int32, amount=amount)


def _less(empty: Empty, x: Tensor, amount: Any) -> Any:
    if x.dtype != torch.int32 or type(amount) is not int:
        return NOT_RECORDED
    return _scalar(empty, x, LESS_INT, torch.bool, amount=amount)


def _multiply(empty: Empty, x: Tensor, factor: Any) -> Any:
    if x.dtype != torch.float32 or isinstance(factor, Tensor):
        return NOT_RECORDED
    return _scalar(empty, x, MULTIPLY, torch.float32, factor=float(factor))


def _scalar(empty: Empty, x: Tensor, operation: int, dtype: torch.dtype, **number: Any) -> Any:
    if not x.is_contiguous():
        return NOT_RECORDED
    found = empty(tuple(x.shape), dtype)
    kernel("scalar")(source=x, target=found, count=x.numel(), operation=operation, **number)
    return found


def _where(empty: Empty, condition: Tensor, first: Tensor, second: Tensor) -> Any:
    parts = (condition, first, second)
    alike = condition.shape == first.shape == second.shape and all(part.is_contiguous() for part in parts)
    if not alike or first.dtype != torch.int32 or second.dtype != torch.int32 or condition.dtype != torch.bool:
        return NOT_RECORDED
    found = empty(tuple(first.shape), torch.int32)
    kernel("choose")(condition=condition, first=first, second=second, target=found, count=found.numel())
    return found


OPERATIONS: dict[Any, Callable[..., Any]] = {
    aten.empty.memory_format: _empty,
    aten.empty_like.default: _empty_like,
    aten.new_empty.default: _new_empty,
    aten.contiguous.default: _contiguous,
    aten.index_select.default: _index_select,
    aten.index_put_.default: _index_put,
    aten.add.Tensor: _add,
    aten.lt.Scalar: _less,
    aten.mul.Tensor: _multiply,
    aten.where.self: _where,
}
