"""Packed weights and the native calls on them: packing, the product of tokens with parts side by side, row lookup.

Weights stay in the bits of their file, 16 rows interleaved (native/src/linear/packed.h). Activations of quantized parts
are rounded to int8 in blocks of 32. A call costs about a microsecond beside its kernel and can be taped.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tenon_platforms.errors import DeviceError

from . import native
from .memory import Slabs

TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
    "BF16": 30,
}  # fmt: skip
DENSE = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
FINE, ALIKE = 16, 32  # enum tenon_precision of include/tenon_cpu.h
SLABS = Slabs()
KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # enum tenon_dtype
_I32, _I64, _POINTER = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p


class _Part(ctypes.Structure):
    _fields_ = [("packed", _POINTER), ("packed_bytes", _I64), ("rows", _I64), ("type", _I32), ("unused", _I32)]


class LinearCall(ctypes.Structure):
    """tenon_linear_call of include/tenon_cpu.h."""

    _fields_ = [
        ("linear", _POINTER), ("x", _POINTER), ("y", _POINTER), ("tokens", _I64), ("x_stride", _I64),
        ("y_stride", _I64), ("x_type", _I32), ("y_type", _I32),
    ]  # fmt: skip


class EmbeddingCall(ctypes.Structure):
    """tenon_embedding_call of include/tenon_cpu.h."""

    _fields_ = [
        ("packed", _POINTER), ("ids", _POINTER), ("y", _POINTER), ("packed_bytes", _I64), ("rows", _I64),
        ("columns", _I64), ("tokens", _I64), ("y_stride", _I64), ("type", _I32), ("id_bytes", _I32),
        ("y_type", _I32), ("scale", ctypes.c_float),
    ]  # fmt: skip


@lru_cache(maxsize=1)
def _calls() -> tuple[Any, Any, Any, Any]:
    """(pack, new, run, embed) of the library."""
    pack = native.function("tenon_cpu_pack", _I32, _I64, _I64, _POINTER, _I64, _POINTER, _I64)
    new = native.function(
        "tenon_cpu_linear_new", ctypes.POINTER(_Part), _I32, _I64, _POINTER, _I32, ctypes.POINTER(_POINTER)
    )
    run = native.function("tenon_cpu_linear", ctypes.POINTER(LinearCall))
    embed = native.function("tenon_cpu_embedding", ctypes.POINTER(EmbeddingCall))
    return pack, new, run, embed


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A [rows, columns] weight of a GGML type. packed: uint8, 64-aligned. Without slots: it is referred to weakly."""

    type: str
    rows: int
    columns: int
    packed: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return int(self.packed.nbytes)

    def stored(self) -> Tensor:
        """The weight as its file has it, uint8 [rows, bytes of a row]; byte for byte what was packed."""
        from tenon_platforms.formats.gguf_types import BY_NAME

        kind = BY_NAME[self.type]
        rows = torch.empty(self.rows, self.columns // kind.elements * kind.bytes, dtype=torch.uint8)
        unpack = native.function("tenon_cpu_unpack", _I32, _I64, _I64, _POINTER, _I64, _POINTER, _I64)
        status = unpack(
            TYPES[self.type], self.rows, self.columns, self.packed.data_ptr(), self.nbytes, rows.data_ptr(), rows.nbytes
        )
        native.check(status, f"unpacking a {self.type} weight")
        return rows


def pack_blocks(blocks: Tensor, type_name: str, columns: int) -> PackedWeight:
    """A weight in GGML blocks, uint8 [rows, bytes of a row], packed; DeviceError where they do not fit `columns`."""
    return _pack(blocks.contiguous(), type_name, blocks.shape[0], columns)


def pack_dense(weight: Tensor) -> PackedWeight:
    """A float32, float16 or bfloat16 weight [rows, columns], packed."""
    return _pack(weight.contiguous(), DENSE[weight.dtype], weight.shape[0], weight.shape[1])


def _pack(stored: Tensor, type_name: str, rows: int, columns: int) -> PackedWeight:
    what = f"packing a [{rows}, {columns}] {type_name} weight"
    sizes = native.library()
    assert sizes is not None
    sizes.tenon_cpu_packed_bytes.argtypes = (_I32, _I64, _I64)
    sizes.tenon_cpu_packed_bytes.restype = _I64
    need = sizes.tenon_cpu_packed_bytes(TYPES[type_name], rows, columns)
    native.check(max(-need, 0), what)
    packed = SLABS.take(need)
    status = _calls()[0](
        TYPES[type_name], rows, columns, stored.data_ptr(), stored.nbytes, packed.data_ptr(), packed.nbytes
    )
    native.check(status, what)
    return PackedWeight(type_name, rows, columns, packed)


class NativeLinear:
    """Parts side by side as one callable: [tokens, out] of [tokens, in], in x's type. Holds the packed parts.

    silu_mul: of two parts of equal rows, silu(first) * second in the product's end. bias: [rows of all parts].
    fine: activations of quantized parts are rounded to int16 codes instead of int8 ones. alike: a token has the same
    bits beside any others; else many tokens may be multiplied with quantized parts in bfloat16.
    """

    __slots__ = ("_handle", "_run", "columns", "out_features", "parts")

    def __init__(
        self,
        parts: Sequence[PackedWeight],
        bias: Tensor | None = None,
        *,
        silu_mul: bool = False,
        fine: bool = False,
        alike: bool = False,
    ) -> None:
        self._handle: int | None = None
        self.parts = tuple(parts)
        self.columns = self.parts[0].columns
        self.out_features = self.parts[0].rows if silu_mul else sum(part.rows for part in self.parts)
        table = (_Part * len(self.parts))(
            *(_Part(part.packed.data_ptr(), part.nbytes, part.rows, TYPES[part.type], 0) for part in self.parts)
        )
        wide = None if bias is None else bias.float().contiguous()
        if wide is not None and wide.numel() != sum(part.rows for part in self.parts):
            raise DeviceError(f"a bias of {wide.numel()} values for {sum(part.rows for part in self.parts)} rows")
        if any(part.columns != self.columns for part in self.parts):
            raise DeviceError(f"parts of a linear differ in columns: {[part.columns for part in self.parts]}")
        handle = _POINTER()
        _, new, self._run, _ = _calls()
        status = new(
            table, len(self.parts), self.columns, None if wide is None else wide.data_ptr(),
            int(silu_mul) + (FINE if fine else 0) + (ALIKE if alike else 0),
            ctypes.byref(handle),
        )  # fmt: skip
        native.check(status, f"making a linear of {len(self.parts)} parts")
        self._handle = handle.value

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None:
            native.function("tenon_cpu_linear_free", _POINTER)(handle)

    @property
    def handle(self) -> int:
        """The library's; it lives as long as this object."""
        assert self._handle is not None
        return self._handle

    def __call__(self, x: Tensor) -> Tensor:
        if x.stride(-1) != 1:
            x = x.contiguous()
        tokens = x.shape[0]
        y = torch.empty(tokens, self.out_features, dtype=x.dtype)
        kind = KINDS[x.dtype]
        call = LinearCall(
            self._handle, x.data_ptr(), y.data_ptr(), tokens, x.stride(0), self.out_features, kind, kind
        )  # fmt: skip
        if status := self._run(call):
            native.check(status, f"a linear of {tokens} tokens")
        return y


def look_up(table: PackedWeight, ids: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """scale * rows `ids` of a packed table, [tokens, columns] in `dtype`; an id out of range gives not-a-number."""
    if ids.dtype not in (torch.int32, torch.int64):
        ids = ids.int()
    ids = ids.contiguous()
    y = torch.empty(len(ids), table.columns, dtype=dtype)
    call = EmbeddingCall(
        table.packed.data_ptr(), ids.data_ptr(), y.data_ptr(), table.nbytes, table.rows, table.columns, len(ids),
        table.columns, TYPES[table.type], ids.element_size(), KINDS[dtype], scale,
    )  # fmt: skip
    native.check(_calls()[3](call), f"looking up {len(ids)} rows")
    return y
