"""The guard over a traced or captured function: no host reads, no data-dependent shapes, the same program every time.

While the function runs, every operation is compared with the recorded program: operation, shapes, types, numbers baked
in and, for a capture, the very memory it reads. What a compiler or a graph would have frozen thus cannot change.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .faults import BrokenContractError

HOST_READS = {
    getattr(Tensor, name)
    for name in (
        "item",
        "tolist",
        "numpy",
        "__array__",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__contains__",
    )
}
DATA_DEPENDENT = {
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "equal",
    "allclose",
    "nonzero",
    "nonzero_numpy",
    "argwhere",
    "masked_select",
    "_unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "unique_dim_consecutive",
    "bincount",
}
MASKS = (torch.bool, torch.uint8)

Entry = tuple[Any, ...]


@dataclass(slots=True, kw_only=True)
class Program:
    """What was recorded. with_memory: also which memory is read (a capture). held: keeps that memory alive."""

    with_memory: bool
    entries: list[Entry] = field(default_factory=list)
    held: list[Tensor] = field(default_factory=list)


def guarded(name: str, fn: Callable[[Any], Any], inputs: Any, program: Program, *, record: bool) -> Any:
    """`fn(inputs)` under the guard: recording into `program`, or held to it."""
    guard = _Operations(name, program, record)
    with _HostReads(name), guard:
        result = fn(inputs)
    if guard.place != len(program.entries):
        raise BrokenContractError(
            f"{name}: ended after {guard.place} operations, the prepared program has {len(program.entries)}"
        )
    return result


class _HostReads(TorchFunctionMode):
    """Refuses to bring values to the host, also where torch reads memory without dispatching."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in HOST_READS:
            raise BrokenContractError(
                f"{self._name}: {func.__name__} reads a device value on the host inside an executable",
                remedy="keep it on the device, or read it before the step from what the host knows",
            )
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    """Records operations, or compares them with the record."""

    def __init__(self, name: str, program: Program, record: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._name = name
        self._program = program
        self._record = record
        # id of a tensor made inside -> it and its number; an id says nothing once its tensor is gone
        self._made: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self.place = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here is compiled, and torch's guard against it imports its compiler: 2 s

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._refuse_data_dependent(func, args)
        entry = (func, *(self._describe(arg) for arg in args), *((k, self._describe(v)) for k, v in kwargs.items()))
        if self._record:
            self._program.entries.append(entry)
        else:
            self._compare(entry)
        self.place += 1
        result = func(*args, **kwargs)
        for made in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(made, Tensor):
                self._made[id(made)] = weakref.ref(made), self.place
        return result

    def _describe(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            held, made = self._made.get(id(value), (None, 0))
            if held is None or held() is not value:
                made = 0
            memory = 0
            if not made and self._program.with_memory:
                memory = value.data_ptr()
                if self._record:
                    self._program.held.append(value)
            return (tuple(value.shape), value.dtype, made, memory)
        if isinstance(value, (tuple, list)):
            return tuple(self._describe(item) for item in value)
        if value != value:  # NaN equals nothing
            return "nan"
        return value

    def _compare(self, entry: Entry) -> None:
        entries = self._program.entries
        expected = entries[self.place] if self.place < len(entries) else ("the end of the program",)
        if entry != expected:
            raise BrokenContractError(
                f"{self._name}: operation {self.place} is {_text(entry)}; prepared was {_text(expected)}: the function"
                " depends on something that is not among its inputs' values"
            )

    def _refuse_data_dependent(self, func: Any, args: Any) -> None:
        op = func.overloadpacket.__name__
        bad = op in DATA_DEPENDENT or (op == "where" and len(args) == 1)
        bad = bad or (op == "repeat_interleave" and isinstance(args[-1], Tensor))
        if op in ("index", "index_put", "index_put_", "_index_put_impl_"):
            masked = any(isinstance(index, Tensor) and index.dtype in MASKS for index in args[1])
            bad = masked and (op == "index" or args[2].numel() != 1)
        if bad:
            raise BrokenContractError(
                f"{self._name}: {func} has a shape that depends on values, which this device cannot run",
                remedy="offer a kernel that works on padded shapes (torch.where, masks)",
            )


def _text(entry: Entry) -> str:
    return f"{entry[0]}{entry[1:]}"[:300]
