"""Linears, gated MLPs and embeddings by the native library: weights stay in the bits of their file.

A GGUF part is packed block for block, its activations rounded to int16 or int8 codes; integers of other checkpoints
become such blocks (`group_blocks.py`). A dense part keeps its stored type where the linear computes in float32, and has
the linear's own otherwise; what is no block is expanded to that. A tied table is packed once for both.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.formats.gguf_types import BY_NAME
from tenon_platforms.kernel import Kernel, KernelFlags, No, WeightUse
from tenon_platforms.ops.embedding import EmbeddingSpec
from tenon_platforms.ops.linear import Dense, FP8Channel, GGUFBlocks, LinearPart, MergedLinearSpec, WeightScheme
from tenon_platforms.ops.linear_reference import dense_weight
from tenon_platforms.ops.mlp import GatedMLPSpec
from tenon_platforms.ops.quantized import FP8Block, FP8Static, Int8Channel, IntGroups
from tenon_platforms.ops.weights import GatedMLPWeights, LinearWeights, PartTensors
from tenon_platforms.torch_dtypes import to_torch

from .. import native
from ..native_linear import DENSE, TYPES, NativeLinear, PackedWeight, look_up, pack_blocks, pack_dense
from .group_blocks import block_type, blocks_of

QUANTIZED = (FP8Channel, FP8Static, FP8Block, Int8Channel, IntGroups)
Weights = tuple[Any, ...]  # (NativeLinear, its PackedWeights): what holds the bytes is counted by identity


@dataclass(slots=True)
class Packer:
    """Packs parts. weights, gguf: the platform's options. alike: a token's sums must not depend on others. Remembers
    what is packed while it and its source live.
    """

    weights: str = "auto"
    gguf: str = "auto"
    alike: bool = False
    _tied: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def is_fine(self) -> bool:
        """Whether activations of blocks are int16 codes: int8 ones move logits by some hundredths."""
        return self.gguf != "inplace"

    def refuses(self, scheme: WeightScheme, columns: int, dtype: DType) -> No | None:
        """Why a weight of `columns` is not computed on here, or None."""
        if to_torch(dtype) not in DENSE:
            return No(f"computes float32, bfloat16 and float16, not {dtype}")
        if isinstance(scheme, Dense):
            return None if to_torch(scheme.stored) in DENSE else No(f"no product of weights stored as {scheme.stored}")
        if isinstance(scheme, QUANTIZED):
            return None
        if not isinstance(scheme, GGUFBlocks):
            return No(f"no product of {scheme.id}")
        if scheme.type not in TYPES or scheme.type not in BY_NAME:
            return No(f"no product of {scheme.type} blocks")
        if columns % BY_NAME[scheme.type].elements:
            return No(f"{scheme.type} blocks do not divide rows of {columns}")
        return None

    def pack(self, scheme: WeightScheme, tensors: PartTensors, columns: int, dtype: DType) -> PackedWeight:
        """One part. Where the same tensor was packed before and is still used, that packing."""
        stored = next(iter(tensors.values()))
        key = id(stored)
        if (known := self._tied.get(key)) is not None and known[0]() is stored and (packed := known[1]()) is not None:
            found: PackedWeight = packed
            return found
        kind = self._block_type(scheme, columns)
        blocks = None
        if kind is not None:
            blocks = tensors["blocks"] if isinstance(scheme, GGUFBlocks) else blocks_of(scheme, tensors, columns)
        if blocks is not None and kind is not None:
            made = pack_blocks(blocks, kind, columns)
        else:
            wide = tensors["weight"] if isinstance(scheme, Dense) else dense_weight(scheme, tensors, torch.float32)
            made = pack_dense(wide.to(self._kept(wide.dtype, dtype)))
        self._tied[key] = (weakref.ref(stored, lambda _: self._tied.pop(key, None)), weakref.ref(made))
        return made

    def _block_type(self, scheme: WeightScheme, columns: int) -> str | None:
        """The blocks that a weight is computed on in, or None: as floats."""
        if self.gguf == "dequantize":
            return None
        return scheme.type if isinstance(scheme, GGUFBlocks) else block_type(scheme, columns)

    def kernel(self, weights: tuple[tuple[WeightScheme, int], ...], dtype: DType, *, run: Any, prepare: Any) -> Kernel:
        """A kernel on packed weights, (scheme, columns) each, named by their schemes and the instruction set.

        Every token's sums have one order at any number of tokens, but for the bfloat16 tiles of AMX, which many tokens
        of int8 codes go through too unless they are to be alike.
        """
        schemes = {scheme for scheme, _ in weights}
        as_floats = {scheme for scheme, columns in weights if self._block_type(scheme, columns) is None}
        expands = any(not isinstance(scheme, Dense) for scheme in as_floats)
        # scales that are no float16 are met when the weights are: they make floats of a few blocks
        dense = bool(as_floats) or any(isinstance(scheme, QUANTIZED) for scheme in schemes)
        has_blocks = any(self._block_type(scheme, columns) is not None for scheme, columns in weights)
        rounds = not self.is_fine and not self.alike and has_blocks
        tiles = ((dense and dtype == DType.BFLOAT16) or rounds) and native.current_isa() == "amx"
        return Kernel(
            name=", ".join(("native", *sorted({scheme.id for scheme in schemes}), native.current_isa())),
            run=run,
            prepare=prepare,
            native="dequantize" if expands else "native",
            flags=KernelFlags(batch_invariant=not tiles),
        )

    def _kept(self, stored: torch.dtype, dtype: DType) -> torch.dtype:
        if dtype != DType.FLOAT32:
            return to_torch(dtype)
        return {"float32": torch.float32, "float16": torch.float16}.get(self.weights, stored)


def merged_linear(spec: MergedLinearSpec, packer: Packer) -> Kernel | No:
    """run(x, weight) -> y, as the reference's; `weight` is `Weights`."""
    for scheme in spec.schemes:
        if (refusal := packer.refuses(scheme, spec.in_features, spec.dtype)) is not None:
            return refusal

    def prepare(weights: LinearWeights, uses: tuple[WeightUse, ...]) -> Weights:
        return _linear(spec.parts, spec, weights, packer)

    weights = tuple((scheme, spec.in_features) for scheme in spec.schemes)
    return packer.kernel(weights, spec.dtype, run=_run, prepare=prepare)


def gated_mlp(spec: GatedMLPSpec, packer: Packer) -> Kernel | No:
    """run(x, weights) -> y; silu(gate) * up at the end of the product that makes both."""
    if spec.activation != "silu":
        return No(f"has silu in a product's end, not {spec.activation}")
    parts = spec.gate_up.parts
    if len(parts) != 2 or parts[0].out_features != parts[1].out_features:
        return No("gate and up must be two parts of one width")
    for linear in (spec.gate_up, spec.down):
        for scheme in linear.schemes:
            if (refusal := packer.refuses(scheme, linear.in_features, linear.dtype)) is not None:
                return refusal

    def prepare(weights: GatedMLPWeights, uses: tuple[WeightUse, ...]) -> tuple[Weights, Weights]:
        first = _linear(parts, spec.gate_up, weights.gate_up, packer, silu_mul=True)
        return first, _linear(spec.down.parts, spec.down, weights.down, packer)

    def run(x: Tensor, weights: tuple[Weights, Weights]) -> Tensor:
        result: Tensor = weights[1][0](weights[0][0](x))
        return result

    kept = tuple((scheme, linear.in_features) for linear in (spec.gate_up, spec.down) for scheme in linear.schemes)
    return packer.kernel(kept, spec.down.dtype, run=run, prepare=prepare)


def embedding(spec: EmbeddingSpec, packer: Packer) -> Kernel | No:
    """run(token_ids, weights) -> y; of blocks, and of float tables that the head multiplies with too."""
    if (refusal := packer.refuses(spec.scheme, spec.hidden, spec.dtype)) is not None:
        return refusal
    dtype = to_torch(spec.dtype)
    scale = float(torch.tensor(spec.scale, dtype=dtype))

    def prepare(weights: PartTensors, uses: tuple[WeightUse, ...]) -> PackedWeight:
        return packer.pack(spec.scheme, weights, spec.hidden, spec.dtype)

    def run(token_ids: Tensor, weights: PackedWeight) -> Tensor:
        return look_up(weights, token_ids, scale, dtype)

    return packer.kernel(((spec.scheme, spec.hidden),), spec.dtype, run=run, prepare=prepare)


def _linear(
    parts: tuple[LinearPart, ...],
    spec: MergedLinearSpec,
    weights: LinearWeights,
    packer: Packer,
    *,
    silu_mul: bool = False,
) -> Weights:
    packed = [
        packer.pack(part.scheme, tensors, spec.in_features, spec.dtype)
        for part, tensors in zip(parts, weights.parts, strict=True)
    ]
    linear = NativeLinear(packed, weights.bias, silu_mul=silu_mul, fine=packer.is_fine, alike=packer.alike)
    return (linear, *packed)


def _run(x: Tensor, weights: Weights) -> Tensor:
    result: Tensor = weights[0](x)
    return result
