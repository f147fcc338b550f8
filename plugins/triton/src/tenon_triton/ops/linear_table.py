"""Which way a linear is computed, by its number of tokens and its shape: data, measured once for a device.

No tuning at run time: a table is a tuple of rules, the first that fits is taken, and a graph captured for some number
of tokens always holds the same kernel. `benchmarks/triton_ops.py` prints what to write here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


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

    widens: an FP8 weight is widened to the activations' type, which are not quantized then.
    """

    m: int = 16
    n: int = 64
    k: int = 128
    splits: int = 1
    warps: int = 4
    stages: int = 4
    swap: bool = False
    widens: bool = False

    def fitted(self, shared_bytes: int, *, weight_bytes: int, x_bytes: int) -> Tiles:
        """With as many stages as fit into a program's fast memory; weight_bytes, x_bytes: of an element."""
        stage = self.k * (self.n * weight_bytes + self.m * x_bytes)
        stages = max(1, min(self.stages, shared_bytes // stage))
        return self if stages == self.stages else replace(self, stages=stages)


Way = Library | Gemv | Tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`way` serves up to max_tokens tokens where the weight [out, in] has at most these sizes; 0: any."""

    max_tokens: int
    way: Way
    max_out: int = 0
    max_in: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearTable:
    """Rules in order of preference. pair_tokens: up to so many tokens a gated MLP's first product ends with the
    activation (its way must be a `Gemv`, or `Tiles` whose sums are not split).
    """

    rules: tuple[Rule, ...] = ()
    pair_tokens: int = 0

    def way(self, tokens: int, out_features: int, in_features: int) -> Way:
        """The first rule that fits, else the library's."""
        for rule in self.rules:
            if tokens > rule.max_tokens:
                continue
            if (rule.max_out and out_features > rule.max_out) or (rule.max_in and in_features > rule.max_in):
                continue
            return rule.way
        return LIBRARY


LIBRARY = Library()

# Measured on an H200 (torch 2.11, cuBLAS 13) inside chains of whole layers, `benchmarks/triton_layers.py --tune`: a way
# that is fastest alone need not be so between its neighbours. One token: a row or two a program, 3.0 to 4.4 TB/s of
# weights where the library reads at 2.5 to 3.6. Up to 64 tokens: tiles with the weight on the left; their sums are
# split so that all of the device has work, but not a gated MLP's first ones, which end with the activation.
NARROW, SQUARE, MIDDLE, WIDE = 1024, 4096, 8192, 65536
_PAIRS = Gemv(rows=2, block=1024, warps=4)


def _left(m: int, k: int, splits: int, *, n: int = 64, warps: int = 4, stages: int = 4) -> Tiles:
    return Tiles(m=m, n=n, k=k, splits=splits, warps=warps, stages=stages, swap=True)


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
    ),
    pair_tokens=64,
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
        Rule(max_tokens=16, way=_left(16, 256, 1)),
        Rule(max_tokens=32, way=_left(32, 256, 4), max_out=NARROW),
        Rule(max_tokens=32, way=_left(32, 512, 2, stages=3), max_out=SQUARE),
        Rule(max_tokens=32, way=_left(32, 256, 1)),
        Rule(max_tokens=64, way=_left(64, 256, 4), max_out=NARROW),
        Rule(max_tokens=64, way=_left(64, 256, 1), max_out=MIDDLE, max_in=8192),
        Rule(max_tokens=64, way=_left(64, 512, 2, stages=3), max_out=SQUARE),
        Rule(max_tokens=64, way=_left(64, 128, 1, n=128, warps=8)),
    ),
    pair_tokens=1,
)
