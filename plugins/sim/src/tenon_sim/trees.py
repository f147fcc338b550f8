"""Tensors inside nested data: dataclasses, tuples, lists and dicts, as steps' inputs and outputs are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor


def tensors_of(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """(path, tensor) of every tensor inside, in a fixed order."""
    if isinstance(value, Tensor):
        yield path or "tensor", value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_of(getattr(value, field.name), f"{path}.{field.name}" if path else field.name)
    elif isinstance(value, dict):
        for key, held in value.items():
            yield from tensors_of(held, f"{path}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        for index, held in enumerate(value):
            yield from tensors_of(held, f"{path}[{index}]")


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same data with every tensor replaced by `change(tensor)`."""
    if isinstance(value, Tensor):
        return change(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {field.name: map_tensors(getattr(value, field.name), change) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **changed)
    if isinstance(value, dict):
        return {key: map_tensors(held, change) for key, held in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(held, change) for held in value)
    return value
