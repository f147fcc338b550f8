"""Every kernel of `tenon_triton.ops` with arguments as real models give them, for ahead-of-time compilation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tenon_triton.ops import (
    blocks,
    choose,
    cut,
    experts,
    float8,
    gemv,
    layer_norm,
    logprobs,
    mlp,
    norm,
    normed_gemv,
    rope_kv,
    rows,
    tiles,
)

BF16, F32, I32, FP8 = "*bf16", "*fp32", "*i32", "*fp8e4nv"
ADDED = {"residual": BF16, "gain": BF16, "total": BF16}
TILES_ADDED = {**ADDED, "gain": F32}
OLD = ("cuda:80",)  # no FP8 there
NO_E4M3FN = ("cuda:80", "hip:gfx942")  # another FP8 of four exponent bits, or none


@dataclass(frozen=True, kw_only=True)
class Entry:
    """kernel: the jitted function; arguments: a type or a constant each; without: targets that lack what it needs.

    registers: the most of a thread, 0: the compiler's choice.
    """

    kernel: Any
    arguments: dict[str, Any]
    warps: int = 4
    stages: int = 3
    registers: int = 0
    without: tuple[str, ...] = ()
    quick: bool = field(default=True)

    @property
    def options(self) -> dict[str, int]:
        """What the kernel is compiled with."""
        found = {"num_warps": self.warps, "num_stages": self.stages}
        return {**found, "maxnreg": self.registers} if self.registers else found

    def fits(self, target: str) -> bool:
        """Whether it can be compiled for the target."""
        return target not in self.without


def _norm(**changes: Any) -> dict[str, Any]:
    return {
        "x": BF16,
        "residual": BF16,
        "weight": BF16,
        "y": BF16,
        "total": BF16,
        "scale": None,
        "hidden": "i32",
        "x_stride": "i32",
        "residual_stride": "i32",
        "eps": "fp32",
        "ADD": True,
        "OFFSET": 0.0,
        "QUANTIZE": False,
        "WHOLE": True,
        "BLOCK": 4096,
        **changes,
    }


def _gemv(**changes: Any) -> dict[str, Any]:
    return {
        "x": BF16,
        "weight": BF16,
        "scale": None,
        "bias": None,
        "y": BF16,
        "out_features": "i32",
        "in_features": "i32",
        "x_stride": "i32",
        "M": 1,
        "ROWS": 1,
        "BLOCK": 2048,
        "EVEN": True,
        "PAIRED": False,
        "KIND": "",
        **changes,
    }


def _blocks(**changes: Any) -> dict[str, Any]:
    return {
        "x": BF16,
        "weight": FP8,
        "x_scale": None,
        "scale": F32,
        "bias": BF16,
        "y": BF16,
        "tokens": "i32",
        "out_features": "i32",
        "in_features": "i32",
        "x_stride": "i32",
        "M": 16,
        "N": 32,
        "K": 128,
        "PRECISION": None,
        **changes,
    }


def _tiles(**changes: Any) -> dict[str, Any]:
    return {
        "x": BF16,
        "weight": BF16,
        "x_scale": None,
        "scale": None,
        "bias": None,
        "y": BF16,
        "parts": F32,
        "counters": I32,
        "residual": None,
        "gain": None,
        "total": None,
        "squares_of": None,
        "tokens": "i32",
        "out_features": "i32",
        "in_features": "i32",
        "x_stride": "i32",
        "residual_stride": "i32",
        "eps": "fp32",
        "shrink": "fp32",
        "M": 16,
        "N": 64,
        "K": 128,
        "SPLITS": 4,
        "EVEN": True,
        "SWAP": False,
        "PRECISION": None,
        "PAIRED": False,
        "KIND": "",
        "LINES": 2,
        "UNPACK": False,
        "QUANTIZE": False,
        **changes,
    }


def _normed_gemv(**changes: Any) -> dict[str, Any]:
    return {
        **{name: value for name, value in _gemv().items() if name not in ("in_features", "BLOCK")},
        **ADDED, "hidden": "i32", "residual_stride": "i32", "eps": "fp32", "OFFSET": 0.0, "ROWS": 2, "BLOCK": 4096,
        **changes,
    }  # fmt: skip


def _rope(**changes: Any) -> dict[str, Any]:
    return {
        "qkv": BF16,
        "positions": I32,
        "cos_sin": F32,
        "q_weight": None,
        "k_weight": None,
        "query": BF16,
        "cache": BF16,
        "slots": I32,
        "qkv_stride": "i32",
        "block_stride": "i32",
        "q_eps": "fp32",
        "k_eps": "fp32",
        "NUM_HEADS": 32,
        "NUM_KV_HEADS": 8,
        "HEAD_DIM": 128,
        "ROTARY": 128,
        "PAGE": 64,
        "HALF": 64,
        "REST": 0,
        "Q_OFFSET": 0.0,
        "K_OFFSET": 0.0,
        "GREATEST": 0.0,
        "HEADS": 8,
        **changes,
    }


def _sampling(**changes: Any) -> dict[str, Any]:
    return {
        "logits": BF16, "row_params": I32, "positions": I32, "edits": F32, "counts": I32, "mask": None, "vocab": "i32",
        "row_stride": "i32", "mask_stride": "i32", "EDITS": False, "GRAMMAR": False, "PENALTIES": False, **changes,
    }  # fmt: skip


def _best(**changes: Any) -> dict[str, Any]:
    return _sampling(
        cut=None, cut_id=None, values=F32, ids_out=I32, tokens=I32, share="i32", ALONE=False, NOISE=False,
        FILTERS=False, PAIRS=1024, **changes,
    )  # fmt: skip


def _quantized(**changes: Any) -> dict[str, Any]:
    return {"x": BF16, "values": FP8, "scale": F32, "width": "i32", "x_stride": "i32", **changes}


EVERYTHING = {"mask": I32, "EDITS": True, "GRAMMAR": True, "PENALTIES": True}
FP8_TILES = {"x": FP8, "weight": FP8, "x_scale": F32, "scale": F32}
KERNELS: dict[str, Entry] = {
    "quantize": Entry(
        kernel=float8._quantize_rows, arguments=_quantized(WHOLE=True, BLOCK=4096), warps=16, without=NO_E4M3FN
    ),
    "quantize wide": Entry(
        kernel=float8._quantize_rows, arguments=_quantized(WHOLE=True, BLOCK=16384), warps=8, without=NO_E4M3FN
    ),
    "quantize in parts": Entry(
        kernel=float8._quantize_rows, arguments=_quantized(WHOLE=False, BLOCK=4096), warps=16, without=NO_E4M3FN
    ),
    "norm": Entry(kernel=norm._norm_rows, arguments=_norm(), warps=16),
    "layer norm": Entry(
        kernel=layer_norm._layer_norm_rows,
        arguments={
            "x": BF16,
            "weight": BF16,
            "bias": BF16,
            "y": BF16,
            "hidden": "i32",
            "x_stride": "i32",
            "eps": "fp32",
            "BLOCK": 1024,
        },
    ),
    "norm wide": Entry(kernel=norm._norm_rows, arguments=_norm(WHOLE=False, BLOCK=16384, OFFSET=1.0), warps=16),
    "norm float8": Entry(
        kernel=norm._norm_rows,
        arguments=_norm(y=FP8, scale=F32, QUANTIZE=True),
        warps=16,
        without=NO_E4M3FN,
    ),
    "activation": Entry(
        kernel=mlp._activation_mul,
        arguments={"x": BF16, "y": BF16, "features": "i32", "x_stride": "i32", "KIND": "silu", "BLOCK": 1024},
    ),
    "activation gelu": Entry(
        kernel=mlp._activation_mul,
        arguments={"x": BF16, "y": BF16, "features": "i32", "x_stride": "i32", "KIND": "gelu", "BLOCK": 1024},
        quick=False,
    ),
    "activation float8": Entry(
        kernel=mlp._activation_mul_float8,
        arguments={
            "x": BF16,
            "values": FP8,
            "scale": F32,
            "features": "i32",
            "x_stride": "i32",
            "KIND": "silu",
            "WHOLE": True,
            "BLOCK": 16384,
        },
        warps=16,
        without=NO_E4M3FN,
    ),
    "prepare inputs": Entry(
        kernel=rows._prepare_inputs,
        arguments={
            "token_ids": I32,
            "token_rows": I32,
            "positions": I32,
            "rows": I32,
            "num_valid": I32,
            "last_tokens": I32,
            "block_tables": I32,
            "out_ids": I32,
            "out_slots": I32,
            "num_tokens": "i32",
            "group_stride": "i32",
            "row_stride": "i32",
            "BLOCK_SIZES": (16, 64),
            "NUM_GROUPS": 2,
            "BLOCK": 128,
        },
    ),
    "row writes": Entry(
        kernel=rows._row_writes,
        arguments={
            "block_tables": I32,
            "row_params": I32,
            "places": I32,
            "blocks": I32,
            "rows": I32,
            "new_params": I32,
            "num_places": "i32",
            "num_rows": "i32",
            "NUM_COLUMNS": 13,
            "COLUMNS": 16,
            "BLOCK": 128,
        },
    ),
    "rope": Entry(kernel=rope_kv._rope_kv, arguments=_rope()),
    "rope normed partial": Entry(
        kernel=rope_kv._rope_kv, arguments=_rope(q_weight=BF16, k_weight=BF16, ROTARY=64, HALF=32, REST=64)
    ),
    "rope into float8": Entry(
        kernel=rope_kv._rope_kv, arguments=_rope(cache=FP8, GREATEST=448.0, q_weight=BF16, k_weight=BF16), without=OLD
    ),
    "greedy": Entry(kernel=choose._best, arguments=_best()),
    "draw": Entry(kernel=choose._best, arguments=_best() | {"NOISE": True, "ALONE": True}),
    "draw with everything": Entry(
        kernel=choose._best,
        arguments=_best() | EVERYTHING | {"NOISE": True, "FILTERS": True, "cut": F32, "cut_id": I32},
    ),
    "best of splits": Entry(
        kernel=choose._best_split,
        arguments={
            "values": F32,
            "ids": I32,
            "tokens": I32,
            "counts": I32,
            "row_params": I32,
            "vocab": "i32",
            "splits": "i32",
            "WIDTH": 64,
            "COUNT": True,
        },
        warps=1,
    ),
    "cut": Entry(
        kernel=cut._find_cut,
        arguments=_sampling(gathered=F32, cut=F32, cut_id=I32, BLOCK=4096),
        warps=16,
    ),
    "cut with everything": Entry(
        kernel=cut._find_cut,
        arguments=_sampling(gathered=F32, cut=F32, cut_id=I32, BLOCK=4096) | EVERYTHING,
        warps=16,
        quick=False,
    ),
    "logprobs": Entry(
        kernel=logprobs._parts,
        arguments={
            "logits": BF16,
            "tokens": I32,
            "greatest": F32,
            "sums": F32,
            "better": I32,
            "top": F32,
            "top_ids": I32,
            "vocab": "i32",
            "row_stride": "i32",
            "k": "i32",
            "PARTS": 32,
            "PART": 4096,
        },
    ),
    "join logprobs": Entry(
        kernel=logprobs._join,
        arguments={
            "logits": BF16,
            "tokens": I32,
            "greatest": F32,
            "sums": F32,
            "better": I32,
            "top": F32,
            "top_ids": I32,
            "chosen_out": F32,
            "rank_out": I32,
            "ids_out": I32,
            "values_out": F32,
            "row_stride": "i32",
            "k": "i32",
            "PARTS": 32,
            "WIDTH": 32,
            "CANDIDATES": 1024,
        },
    ),
    "route": Entry(
        kernel=experts.route,
        arguments={
            "scores": BF16,
            "experts": I32,
            "shares": F32,
            "num_experts": "i32",
            "TOP_K": 8,
            "RENORMALIZE": True,
            "PLACES": 8,
            "WIDTH": 128,
        },
        warps=1,
    ),
    "sort": Entry(
        kernel=experts.sort,
        arguments={
            "experts": I32,
            "order": I32,
            "owner": I32,
            "num_assignments": "i32",
            "num_tiles": "i32",
            "num_experts": "i32",
            "M": 32,
            "WIDTH": 256,
            "BLOCK": 1024,
        },
    ),
    "grouped": Entry(
        kernel=experts.grouped,
        arguments={
            "x": BF16,
            "weight": BF16,
            "y": BF16,
            "order": I32,
            "owner": I32,
            "shares": F32,
            "num_assignments": "i32",
            "out_features": "i32",
            "in_features": "i32",
            "DIVIDE": 8,
            "PAIRED": True,
            "KIND": "silu",
            "PRECISION": None,
            "M": 32,
            "N": 64,
            "K": 64,
            "EVEN": True,
        },
    ),
    "grouped down": Entry(
        kernel=experts.grouped,
        arguments={
            "x": BF16,
            "weight": BF16,
            "y": F32,
            "order": I32,
            "owner": I32,
            "shares": F32,
            "num_assignments": "i32",
            "out_features": "i32",
            "in_features": "i32",
            "DIVIDE": 1,
            "PAIRED": False,
            "KIND": "",
            "PRECISION": None,
            "M": 64,
            "N": 64,
            "K": 64,
            "EVEN": True,
        },
        quick=False,
    ),
    "single expert": Entry(
        kernel=experts.single,
        arguments={
            "x": BF16,
            "weight": BF16,
            "y": BF16,
            "experts": I32,
            "shares": F32,
            "out_features": "i32",
            "in_features": "i32",
            "DIVIDE": 8,
            "PAIRED": True,
            "KIND": "silu",
            "ROWS": 4,
            "BLOCK": 512,
            "EVEN": True,
        },
    ),
    "sum of experts": Entry(
        kernel=experts.total,
        arguments={"parts": F32, "y": BF16, "hidden": "i32", "TOP_K": 8, "BLOCK": 1024},
    ),
    "gemv": Entry(kernel=gemv._gemv, arguments=_gemv()),
    "gemv paired": Entry(kernel=gemv._gemv, arguments=_gemv(PAIRED=True, KIND="silu", M=2, ROWS=2, BLOCK=1024)),
    "gemv float8": Entry(kernel=gemv._gemv, arguments=_gemv(weight=FP8, scale=F32, BLOCK=4096), without=NO_E4M3FN),
    "blocks kept": Entry(kernel=blocks._blocks, arguments=_blocks(), without=NO_E4M3FN),
    "blocks float8": Entry(
        kernel=blocks._blocks, arguments=_blocks(x=FP8, x_scale=F32, M=128, N=64), without=NO_E4M3FN
    ),
    "tiles": Entry(kernel=tiles._tiles, arguments=_tiles(), stages=4),
    "tiles swapped": Entry(kernel=tiles._tiles, arguments=_tiles(SWAP=True), stages=4),
    "tiles paired": Entry(
        kernel=tiles._tiles, arguments=_tiles(SWAP=True, SPLITS=1, PAIRED=True, KIND="silu"), stages=3
    ),
    "tiles widened": Entry(
        kernel=tiles._tiles,
        arguments=_tiles(weight=FP8, scale=F32, SWAP=True, K=256, UNPACK=True),
        stages=4,
        without=("cuda:80", "hip:gfx942", "hip:gfx950", "hip:gfx1100"),  # it is written in PTX of Hopper
    ),
    "tiles quantizing": Entry(
        kernel=tiles._tiles,
        arguments=_tiles(weight=FP8, scale=F32, SWAP=True, SPLITS=1, PAIRED=True, KIND="silu", K=256, QUANTIZE=True),
        stages=3,
        without=NO_E4M3FN,
    ),
    "tiles normed": Entry(
        kernel=tiles._tiles, arguments=_tiles(**TILES_ADDED, squares_of=F32, SWAP=True, SPLITS=2), stages=4
    ),
    "tiles normed paired": Entry(
        kernel=tiles._tiles, arguments=_tiles(**TILES_ADDED, SWAP=True, SPLITS=1, PAIRED=True, KIND="silu"), stages=4
    ),
    "tiles normed widened": Entry(
        kernel=tiles._tiles,
        arguments=_tiles(**TILES_ADDED, weight=FP8, scale=F32, SWAP=True, SPLITS=1, K=256, UNPACK=True),
        stages=4,
        without=("cuda:80", "hip:gfx942", "hip:gfx950", "hip:gfx1100"),  # PTX of Hopper
    ),
    "normed gemv": Entry(kernel=normed_gemv._normed_gemv, arguments=_normed_gemv(), warps=8),
    "normed gemv paired": Entry(
        kernel=normed_gemv._normed_gemv, arguments=_normed_gemv(PAIRED=True, KIND="silu"), warps=8
    ),
    "normed gemv of four": Entry(kernel=normed_gemv._normed_gemv, arguments=_normed_gemv(M=4), warps=8),
    "normed gemv float8": Entry(
        kernel=normed_gemv._normed_gemv, arguments=_normed_gemv(weight=FP8, scale=F32), warps=8, without=NO_E4M3FN
    ),
    "tiles float8": Entry(kernel=tiles._tiles, arguments=_tiles(**FP8_TILES, K=256), stages=4, without=NO_E4M3FN),
}
