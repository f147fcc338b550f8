"""Merged linears: all parts in one weight [out, in], multiplied in the way a table names for this many tokens.

Dense weights in the linear's type, or FP8 (with a scale a channel, or any weight quantized when it is loaded): then
activations are quantized a token, also where a checkpoint has one scale for all, which is coarser; except by the GEMV,
which widens the weights instead and keeps what the activations have, where no platform brings a kernel of its own.
Other schemes are expanded when they are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import linear

from tenon_platforms.kernel import Kernel, KernelFlags, No, WeightUse
from tenon_platforms.ops.linear import Dense, FP8Channel, MergedLinearSpec
from tenon_platforms.ops.linear_reference import dense_weight, quantize_fp8
from tenon_platforms.ops.quantized import FP8Static
from tenon_platforms.ops.weights import LinearWeights
from tenon_platforms.torch_dtypes import to_torch

from .float8 import Float8Rows, quantize
from .gemv import MOST_TOKENS, gemv
from .linear_table import BANDWIDTH, FLOAT8_BANDWIDTH, Gemv, LinearTable, NormedGemv, NormedWay, Rule, Tiles, Way
from .normed_gemv import WIDEST
from .tiles import tiles

CHANNELS = (FP8Channel, FP8Static)  # schemes whose weights are kept as they come
FLOAT8_UNIT = 16  # the library multiplies FP8 in whole units of so many
ONE_WAY = Tiles(m=64, n=64, k=64, splits=1, warps=4, stages=3)
ONE_TILE = LinearTable(rules=(Rule(max_tokens=2**31, way=ONE_WAY),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A prepared weight [out, in]. scale: float32 [out] where it is float8_e4m3fn, else None. bias: [out] or None."""

    weight: Tensor
    scale: Tensor | None
    bias: Tensor | None

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.weight.nbytes + (0 if self.scale is None else self.scale.nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearPolicy:
    """How linears are computed on a device.

    table, float8_table: ways by shape. shared_bytes: fast memory that one program may use, 0: as much as the tables ask
    for. float8: whether the device multiplies e4m3fn. online_float8: quantize dense
    weights when they are loaded. invariant: one way for every number of tokens.
    """

    table: LinearTable = BANDWIDTH
    float8_table: LinearTable = FLOAT8_BANDWIDTH
    shared_bytes: int = 0
    float8: bool = False
    online_float8: bool = False
    invariant: bool = False

    def one_tile(self) -> LinearPolicy:
        """The same with a token's result independent of the batch."""
        return replace(self, table=ONE_TILE, float8_table=ONE_TILE, invariant=True)

    def is_float8(self, spec: MergedLinearSpec) -> bool:
        """Whether the weight of `spec` is kept in FP8."""
        if not self.float8 or spec.in_features % FLOAT8_UNIT or spec.out_features % FLOAT8_UNIT:
            return False
        return self.online_float8 or all(isinstance(scheme, CHANNELS) for scheme in spec.schemes)

    def prepare(self, spec: MergedLinearSpec, weights: LinearWeights) -> Weight:
        """All parts joined."""
        dtype = to_torch(spec.dtype)
        bias = None if weights.bias is None else weights.bias.to(dtype)
        if not self.is_float8(spec):
            parts = [dense_weight(p.scheme, t, dtype) for p, t in zip(spec.parts, weights.parts, strict=True)]
            return Weight(weight=_join(parts).contiguous(), scale=None, bias=bias)
        kept, scales = [], []
        for part, tensors in zip(spec.parts, weights.parts, strict=True):
            if isinstance(part.scheme, CHANNELS):
                kept.append(tensors["weight"])
                scales.append(tensors["scale"].float().reshape(-1))
            else:
                values, scale = quantize_fp8(dense_weight(part.scheme, tensors, dtype))
                kept.append(values)
                scales.append(scale)
        as_bytes = [values.view(torch.uint8) for values in kept]  # torch joins bytes everywhere
        joined = _join(as_bytes).contiguous().view(torch.float8_e4m3fn)
        return Weight(weight=joined, scale=_join(scales).contiguous(), bias=bias)

    def way(self, tokens: int, weight: Weight) -> Way:
        """How `tokens` rows are multiplied by a prepared weight."""
        table = self.table if weight.scale is None else self.float8_table
        out_features, in_features = weight.weight.shape
        way = table.way(tokens, out_features, in_features)
        if not self.shared_bytes or not isinstance(way, Tiles):
            return way
        item = weight.weight.element_size()
        return way.fitted(self.shared_bytes, weight_bytes=item, x_bytes=2 if way.takes_wide else item)

    def keeps(self, tokens: int, weight: Weight) -> bool:
        """Whether activations are multiplied by a prepared weight in their own type, not quantized."""
        way = self.way(tokens, weight)
        if weight.scale is None or (isinstance(way, Tiles) and way.takes_wide):
            return True
        return isinstance(way, Gemv) and tokens <= MOST_TOKENS

    def pairs(self, tokens: int, weight: Weight) -> Gemv | Tiles | None:
        """The way in which a gated MLP's first product ends with the activation, where it does for so few tokens."""
        table = self.table if weight.scale is None else self.float8_table
        way = self.way(tokens, weight)
        if not 0 < tokens <= table.pair_tokens or not self.keeps(tokens, weight):
            return None
        if isinstance(way, Gemv):
            return way if tokens <= MOST_TOKENS else None
        if not isinstance(way, Tiles) or way.splits > 1:
            return None
        item = weight.weight.element_size()
        x_bytes = 2 if way.takes_wide else item
        return way.fitted(self.shared_bytes, weight_bytes=2 * item, x_bytes=x_bytes) if self.shared_bytes else way

    def normed(self, tokens: int, weight: Weight, *, paired: bool = False) -> NormedWay | None:
        """The way in which the norm before a product is part of its launch, where the table names one.

        paired: the product is a gated MLP's first and ends with the activation.
        """
        table = self.table if weight.scale is None else self.float8_table
        out_features, in_features = weight.weight.shape
        way = table.normed_way(tokens, out_features, in_features) if tokens else None
        if isinstance(way, NormedGemv):
            return way if tokens <= MOST_TOKENS and in_features <= WIDEST else None
        if way is None or (paired and way.splits > 1) or (weight.scale is not None and not way.widens):
            return None
        if not self.shared_bytes:
            return way
        x_bytes = 2 if weight.scale is not None else weight.weight.element_size()
        room = self.shared_bytes - way.m * way.k * x_bytes  # the sum times the gain lies beside what is on its way
        weight_bytes = weight.weight.element_size() * (2 if paired else 1)
        return way.fitted(room, weight_bytes=weight_bytes, x_bytes=2 * x_bytes)


def multiply(x: Tensor | Float8Rows, weight: Weight, policy: LinearPolicy, dtype: torch.dtype) -> Tensor:
    """y [tokens, out] in `dtype` of x [tokens, in], which may be quantized already."""
    held = x.values if isinstance(x, Float8Rows) else x
    tokens = held.shape[0]
    way = policy.way(tokens, weight)
    if tokens == 0:
        return torch.empty((0, weight.weight.shape[0]), dtype=dtype, device=held.device)
    if isinstance(x, Tensor):
        x = x if x.stride(1) == 1 else x.contiguous()
        if isinstance(way, Gemv) and tokens <= MOST_TOKENS:
            return gemv(x, weight.weight, way, scale=weight.scale, bias=weight.bias)
        if isinstance(way, Tiles) and policy.keeps(tokens, weight):
            return tiles(x, weight.weight, way, scale=weight.scale, bias=weight.bias)
        if weight.scale is None:
            return linear(x, weight.weight, weight.bias)
        x = quantize(x)
    assert weight.scale is not None, "quantized activations meet a quantized weight only"
    if not isinstance(way, Tiles) and dtype == torch.bfloat16:
        return _library_float8(x, weight)
    way = way if isinstance(way, Tiles) else ONE_WAY
    return tiles(x.values, weight.weight, way, x_scale=x.scale, scale=weight.scale, bias=weight.bias, dtype=dtype)


def _library_float8(x: Float8Rows, weight: Weight) -> Tensor:
    """torch's row-wise scaled product, which gives bfloat16 and nothing finer."""
    assert weight.scale is not None
    return torch._scaled_mm(
        x.values,
        weight.weight.t(),
        scale_a=x.scale[:, None],
        scale_b=weight.scale[None, :],
        bias=weight.bias,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )


def merged_linear(spec: MergedLinearSpec, policy: LinearPolicy) -> Kernel | No:
    """run(x, weight) -> y, as the reference's; `weight`: a prepared `Weight`. x may be `Float8Rows` for FP8 weights."""
    if not spec.dtype.is_floating or spec.dtype.num_bytes > 4:
        return No(f"multiplies float32 and half types, not {spec.dtype}")
    dtype, float8 = to_torch(spec.dtype), policy.is_float8(spec)

    def prepare(weights: LinearWeights, uses: tuple[WeightUse, ...]) -> Weight:
        return policy.prepare(spec, weights)

    def run(x: Tensor | Float8Rows, weight: Weight) -> Tensor:
        return multiply(x, weight, policy, dtype)

    dense = all(isinstance(scheme, Dense) for scheme in spec.schemes)
    return Kernel(
        name=("FP8 rows and channels" if float8 else "by table") + (", one tile" if policy.invariant else ""),
        run=run,
        prepare=prepare,
        native="native" if float8 or dense else "dequantize",
        flags=KernelFlags(batch_invariant=policy.invariant),
    )


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
