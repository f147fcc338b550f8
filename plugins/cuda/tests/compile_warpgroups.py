"""Compiles the kernels of Hopper ahead of time, no device needed, and prints their fast memory and what they spill.

A process of its own, since the interpreter of other tests and the compiler exclude each other.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import triton
from triton.experimental.gluon.language import NVMMASharedLayout

sys.path.insert(0, str(Path(__file__).parents[2] / "triton" / "tests" / "ops"))

from ahead_of_time import source_of, spills, target_of
from kernels_to_compile import Entry

from tenon_cuda.ops.persistent_mlp_kernel import persistent_mlp_kernel
from tenon_cuda.ops.warpgroup_gated_kernel import warpgroup_gated_kernel
from tenon_cuda.ops.warpgroup_kernel import warpgroup_prefill_kernel
from tenon_cuda.ops.warpgroups import REGISTERS

LINE = 128  # bytes
BYTES = {"bf16": 2, "fp16": 2, "fp8e4nv": 1}


def lines(dtype: str, height: int) -> str:
    """A descriptor's type: of boxes of so many lines, 128 bytes each."""
    layout = NVMMASharedLayout(swizzle_byte_width=LINE, element_bitwidth=8 * BYTES[dtype], rank=2)
    return f"tensordesc<{dtype}[{height},{LINE // BYTES[dtype]}],{layout!r}>"


def prompts(dtype: str, group: int, *, causal: bool, apart: bool = False) -> Entry:
    """What is launched for a model of such heads."""
    tensor, i32 = f"*{dtype}", "*i32"
    arguments = {
        "output": tensor, "query": tensor, "pages": lines(dtype, 64), "block_table": i32,
        "rows": i32, "query_starts": i32, "seq_lens": i32, "first_row": "i32", "num_rows": "i32", "table_stride": "i32",
        "query_token_stride": "i32", "query_head_stride": "i32", "output_token_stride": "i32", "factor": "fp32",
        "NUM_KV_HEADS": 8, "GROUP": group, "CAUSAL": causal, "APART": apart,
    }  # fmt: skip
    return Entry(kernel=warpgroup_prefill_kernel, arguments=arguments, registers=REGISTERS)


def gated(dtype: str, scale: str | None, group: int) -> Entry:
    """What is launched for a gated MLP's first product."""
    arguments = {
        "out": lines("bf16", 64), "x": lines(dtype, 128), "weight": lines(dtype, 128), "x_scale": scale, "scale": scale,
        "rows": "i32", "features": "i32", "steps": "i32", "GROUP": group,
    }  # fmt: skip
    return Entry(kernel=warpgroup_gated_kernel, arguments=arguments, registers=REGISTERS)


def few(dtype: str, scale: str | None, tokens: int, stages: int) -> Entry:
    """What is launched for a gated MLP of so many tokens or fewer."""
    arguments = {
        "y": "*bf16", "x": lines(dtype, tokens), "gate_up": lines(dtype, 16), "down": lines(dtype, 32),
        "inner_lines": lines(dtype, tokens), "inner": "*bf16", "quantized": scale and f"*{dtype}", "largest": scale,
        "x_scale": scale, "gate_up_scale": scale, "down_scale": scale, "counter": "*i64", "rows": "i32",
        "HIDDEN": 4096, "FEATURES": 14336, "TOKENS": tokens, "STAGES": stages,
    }  # fmt: skip
    return Entry(kernel=persistent_mlp_kernel, arguments=arguments)


def main() -> None:
    """A line a kernel; raises where one does not compile."""
    entries = {
        "bf16": prompts("bf16", 4, causal=True), "fp16": prompts("fp16", 1, causal=False),
        "apart": prompts("bf16", 4, causal=True, apart=True),
        "gated": gated("bf16", None, 8), "gated8": gated("fp8e4nv", "*fp32", 16),
        "few": few("bf16", None, 8, 9), "few8": few("fp8e4nv", "*fp32", 8, 11),
        "few8_16": few("fp8e4nv", "*fp32", 16, 9),
    }  # fmt: skip
    for name, one in entries.items():
        compiled = triton.compile(source_of(one, early=False), target=target_of("cuda:90"), options=one.options)
        products = ",".join(sorted(set(re.findall(r"wgmma\.mma_async\S*\.(m64n\d+k\d+)", compiled.asm["ptx"]))))
        print(f"{name} shared={compiled.metadata.shared} spills={spills(compiled)} products={products}", flush=True)


if __name__ == "__main__":
    main()
