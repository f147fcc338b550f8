"""Which way a linear is computed, by its number of tokens and its shape: data, measured once for a device.

No tuning at run time: a table is a tuple of rules, the first that fits is taken, and a graph captured for some number
of tokens always holds the same kernel. `benchmarks/triton_ops.py` and `triton_fused.py` print what to write here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """torch's own product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemv:
    """`gemv.py`. rows: of the weight a program owns; block: columns it reads at once."""

    rows: int = 1
    block: int = 1024
    warps: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """`tiles.py`. m, n, k: the tile; splits: programs that share one tile's sum; swap: the weight is the left side.

    widens: an FP8 weight is widened to the activations' type, which are not quantized then. quantizes: they are in the
    product itself, a tile of a token at a time.
    """

    m: int = 16
    n: int = 64
    k: int = 128
    splits: int = 1
    warps: int = 4
    stages: int = 4
    swap: bool = False
    widens: bool = False
    quantizes: bool = False

    @property
    def takes_wide(self) -> bool:
        """Whether an FP8 weight meets activations in their own type."""
        return self.widens or self.quantizes

    def fitted(self, shared_bytes: int, *, weight_bytes: int, x_bytes: int) -> Tiles:
        """With as many stages as fit into a program's fast memory; weight_bytes, x_bytes: of an element."""
        stage = self.k * (self.n * weight_bytes + self.m * x_bytes)
        stages = max(1, min(self.stages, shared_bytes // stage))
        return self if stages == self.stages else replace(self, stages=stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class NormedGemv:
    """`normed_gemv.py`. rows: of the weight a program reads at once; turns: how often it does, on one norm."""

    rows: int = 2
    turns: int = 4
    warps: int = 8


Way = Library | Gemv | Tiles
NormedWay = NormedGemv | Tiles  # ways in which the residual add and the norm before a product are done in its launch
Kind = TypeVar("Kind", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Generic[Kind]):
    """`way` serves up to max_tokens tokens where the weight [out, in] has at most these sizes; 0: any."""

    max_tokens: int
    way: Kind
    max_out: int = 0
    max_in: int = 0

    def fits(self, tokens: int, out_features: int, in_features: int) -> bool:
        """Whether it serves such a product."""
        if tokens > self.max_tokens or (self.max_out and out_features > self.max_out):
            return False
        return not self.max_in or in_features <= self.max_in


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearTable:
    """Rules in order of preference. pair_tokens: up to so many tokens a gated MLP's first product ends with the
    activation (its way must be a `Gemv`, or `Tiles` whose sums are not split). normed: ways with the norm in the
    product's launch, a gated MLP's always with the activation. None, or where none fits: the norm has its own launch.
    """

    rules: tuple[Rule[Way], ...] = ()
    pair_tokens: int = 0
    normed: tuple[Rule[NormedWay | None], ...] = ()

    def way(self, tokens: int, out_features: int, in_features: int) -> Way:
        """The first rule that fits, else the library's."""
        return _first(self.rules, tokens, out_features, in_features) or LIBRARY

    def normed_way(self, tokens: int, out_features: int, in_features: int) -> NormedWay | None:
        """What the first rule that fits says of the norm."""
        return _first(self.normed, tokens, out_features, in_features)


def _first(rules: tuple[Rule[Kind], ...], tokens: int, out_features: int, in_features: int) -> Kind | None:
    return next((rule.way for rule in rules if rule.fits(tokens, out_features, in_features)), None)


LIBRARY = Library()

# Measured on an H200 (torch 2.11, cuBLAS 13) inside chains of whole layers, `benchmarks/triton_layers.py --tune`: a way
# that is fastest alone need not be so between its neighbours. One token: a row or two a program, 3.0 to 4.4 TB/s of
# weights where the library reads at 2.5 to 3.6. Up to 64 tokens: tiles with the weight on the left; their sums are
# split so that all of the device has work, but not a gated MLP's first ones, which end with the activation. The norm in
# the product's launch (`triton_fused.py`) saves 3 % of a wide layer of one token, and 11 % of a narrow one in FP8.
# Tokens quantized in an FP8 MLP's first product, which then ends with the activation, save a launch: 7 % of a wide
# layer of 2 and 4 tokens, 3 of 8, 2 of 16 and 32; at 64 they cost 10. Up to 256 tokens own tiles serve narrow layers:
# 5 % of one of 128 tokens, 1 of 192 and 256; of wide ones the MLP's first product (4 % of 128), in FP8 the others (6).
NARROW, SQUARE, MIDDLE, WIDE = 1024, 4096, 8192, 65536
_PAIRS = Gemv(rows=2, block=1024, warps=4)


def _left(m: int, k: int, splits: int, *, n: int = 64, warps: int = 4, stages: int = 4) -> Tiles:
    return Tiles(m=m, n=n, k=k, splits=splits, warps=warps, stages=stages, swap=True)


def _quantizing(m: int, splits: int, *, warps: int = 8) -> Tiles:
    return Tiles(m=m, n=128, k=128, splits=splits, warps=warps, swap=True, quantizes=True)


BANDWIDTH = LinearTable(
    rules=(
        Rule(max_tokens=1, way=Gemv(rows=2, block=2048, warps=4), max_out=WIDE),
        Rule(max_tokens=1, way=Gemv(rows=4, block=1024, warps=4), max_in=2048),
        Rule(max_tokens=1, way=Gemv(rows=2, block=2048, warps=4)),
        Rule(max_tokens=2, way=_PAIRS, max_out=WIDE, max_in=1024),
        Rule(max_tokens=4, way=_PAIRS, max_out=NARROW),
        Rule(max_tokens=16, way=_left(16, 256, 4), max_out=NARROW),
        Rule(max_tokens=16, way=_left(16, 256, 2), max_out=SQUARE),
        Rule(max_tokens=16, way=_left(16, 128, 1), max_out=MIDDLE, max_in=2048),
        Rule(max_tokens=16, way=_left(16, 128, 2), max_out=MIDDLE),
        Rule(max_tokens=16, way=_left(16, 128, 1)),
        Rule(max_tokens=32, way=_left(32, 128, 4, stages=5), max_out=NARROW),
        Rule(max_tokens=32, way=_left(32, 128, 1), max_out=MIDDLE, max_in=2048),
        Rule(max_tokens=32, way=_left(32, 256, 2), max_out=SQUARE),
        Rule(max_tokens=32, way=_left(32, 128, 2), max_out=MIDDLE),
        Rule(max_tokens=32, way=_left(32, 128, 1)),
        Rule(max_tokens=64, way=Tiles(m=64, n=32, k=128, splits=4, stages=5), max_out=NARROW),
        Rule(max_tokens=64, way=Tiles(m=64, n=32, k=256, stages=3), max_out=MIDDLE, max_in=2048),
        Rule(max_tokens=64, way=LIBRARY, max_out=SQUARE, max_in=8192),
        Rule(max_tokens=64, way=_left(64, 128, 2), max_out=SQUARE),
        Rule(max_tokens=64, way=_left(64, 128, 1), max_out=WIDE),
        Rule(max_tokens=64, way=_left(64, 128, 1, n=128, warps=8)),
        Rule(max_tokens=128, way=Tiles(m=64, n=64, k=128, splits=4), max_out=NARROW, max_in=SQUARE),
        Rule(max_tokens=128, way=Tiles(m=64, n=64, k=128), max_out=SQUARE, max_in=NARROW),
        Rule(max_tokens=128, way=_left(64, 64, 1, stages=5), max_out=MIDDLE, max_in=NARROW),
        Rule(max_tokens=128, way=LIBRARY, max_out=MIDDLE),
        Rule(max_tokens=128, way=_left(128, 64, 1, n=128, warps=8), max_out=WIDE),
        Rule(max_tokens=256, way=Tiles(m=64, n=64, k=128, splits=2), max_out=NARROW, max_in=SQUARE),
        Rule(max_tokens=256, way=_left(128, 64, 1, stages=5), max_out=MIDDLE, max_in=NARROW),
    ),
    pair_tokens=256,
    normed=(
        Rule(max_tokens=1, way=None, max_in=2048),
        Rule(max_tokens=1, way=NormedGemv(rows=2, turns=6, warps=8), max_out=MIDDLE),
        Rule(max_tokens=1, way=NormedGemv(rows=2, turns=14, warps=8)),
    ),
)
FLOAT8_BANDWIDTH = LinearTable(
    rules=(
        Rule(max_tokens=1, way=Gemv(rows=1, block=1024, warps=2), max_out=MIDDLE, max_in=8192),
        Rule(max_tokens=1, way=Gemv(rows=1, block=1024, warps=4), max_out=MIDDLE),
        Rule(max_tokens=1, way=Gemv(rows=2, block=1024, warps=2)),
        Rule(max_tokens=2, way=_PAIRS, max_out=NARROW),
        Rule(max_tokens=4, way=Gemv(rows=4, block=1024, warps=8), max_out=NARROW),
        Rule(max_tokens=16, way=_left(16, 256, 4), max_out=NARROW),
        Rule(max_tokens=16, way=_left(16, 512, 2, stages=3), max_out=SQUARE),
        Rule(max_tokens=16, way=_left(16, 256, 1), max_out=MIDDLE, max_in=2048),
        Rule(max_tokens=4, way=_quantizing(16, 4, warps=4), max_out=MIDDLE),
        Rule(max_tokens=16, way=_left(16, 256, 1), max_out=MIDDLE),
        Rule(max_tokens=16, way=_quantizing(16, 1)),
        Rule(max_tokens=32, way=_left(32, 256, 4), max_out=NARROW),
        Rule(max_tokens=32, way=_left(32, 512, 2, stages=3), max_out=SQUARE),
        Rule(max_tokens=32, way=_left(32, 256, 1), max_out=MIDDLE),
        Rule(max_tokens=32, way=_quantizing(32, 1)),
        Rule(max_tokens=64, way=_left(64, 256, 4), max_out=NARROW),
        Rule(max_tokens=64, way=_left(64, 256, 1), max_out=MIDDLE, max_in=8192),
        Rule(max_tokens=64, way=_left(64, 512, 2, stages=3), max_out=SQUARE),
        Rule(max_tokens=64, way=_left(64, 128, 1, n=128, warps=8)),
        Rule(max_tokens=128, way=Tiles(m=128, n=32, k=128, splits=2), max_out=SQUARE),
        Rule(max_tokens=128, way=Tiles(m=128, n=32, k=128), max_out=MIDDLE),
    ),
    pair_tokens=32,
    normed=(Rule(max_tokens=1, way=NormedGemv(rows=4, turns=2, warps=4), max_in=NARROW),),
)
