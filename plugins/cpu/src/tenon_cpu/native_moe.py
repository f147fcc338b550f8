"""A mixture of experts as one native call: routing, products of all experts in one region, and the weighted sum.

Which experts run is found in the call: a tape replays it. Cost: the weights of the chosen experts are read once
for each block of their tokens, x once for each of a token's experts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tenon_platforms.errors import DeviceError

from . import native
from .native_linear import KINDS, NativeLinear

_I32, _I64, _POINTER = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p


class MoECall(ctypes.Structure):
    """tenon_moe_call of include/tenon_cpu.h."""

    _fields_ = [
        ("moe", _POINTER), ("x", _POINTER), ("y", _POINTER), ("tokens", _I64), ("x_stride", _I64), ("y_stride", _I64),
        ("type", _I32), ("unused", _I32),
    ]  # fmt: skip


@cache
def _calls() -> tuple[Any, Any]:
    """(new, run) of the library."""
    pointers = ctypes.POINTER(_POINTER)
    new = native.function("tenon_cpu_moe_new", _POINTER, pointers, _I32, _I32, _I32, pointers)
    return new, native.function("tenon_cpu_moe", ctypes.POINTER(MoECall))


class NativeMoE:
    """[tokens, hidden] of [tokens, hidden], in x's type. Holds its linears.

    router: [experts, hidden]. experts: of each silu(gate) * up [inner, hidden] and down [hidden, inner].
    renormalize: the weights of a token's top_k experts are divided by their sum.
    """

    __slots__ = ("_handle", "_run", "experts", "hidden", "router")

    def __init__(
        self,
        *,
        router: NativeLinear,
        experts: Sequence[tuple[NativeLinear, NativeLinear]],
        top_k: int,
        renormalize: bool,
    ) -> None:
        self._handle: int | None = None
        self.router, self.experts, self.hidden = router, tuple(experts), router.columns
        linears = [linear.handle for expert in self.experts for linear in expert]
        new, self._run = _calls()
        handle = _POINTER()
        table = (_POINTER * len(linears))(*linears)
        status = new(router.handle, table, len(self.experts), top_k, int(renormalize), ctypes.byref(handle))
        native.check(status, f"making a mixture of {len(self.experts)} experts")
        self._handle = handle.value

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None:
            native.function("tenon_cpu_moe_free", _POINTER)(handle)

    @property
    def nbytes(self) -> int:
        """Bytes of weights held."""
        linears = (self.router, *(linear for expert in self.experts for linear in expert))
        return sum(part.nbytes for linear in linears for part in linear.parts)

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.hidden:
            raise DeviceError(f"a mixture of experts of {self.hidden} columns was given {x.shape[-1]}")
        if x.stride(-1) != 1:
            x = x.contiguous()
        tokens = x.shape[0]
        y = torch.empty(tokens, self.hidden, dtype=x.dtype)
        call = MoECall(self._handle, x.data_ptr(), y.data_ptr(), tokens, x.stride(0), self.hidden, KINDS[x.dtype], 0)
        if status := self._run(call):
            native.check(status, f"a mixture of experts of {tokens} tokens")
        return y
