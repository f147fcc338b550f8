"""Times the kernels that only move rows, against what their bytes take: norms, activations, quantizing.

    python benchmarks/triton_rows.py [--rows 16,512,8192]

Microseconds of a launch in a graph over inputs that no cache holds, and the share of 4.3 TB/s. For the activation of
FP8 rows every configuration of its kernel too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from checkout import use_checkout
from graph_timing import timed

use_checkout()

import torch  # noqa: E402
import triton  # noqa: E402
from torch import Tensor  # noqa: E402

from tenon_platforms.dtypes import DType  # noqa: E402
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec  # noqa: E402
from tenon_triton import early  # noqa: E402
from tenon_triton.ops import float8, mlp, norm  # noqa: E402

HIDDEN, INNER, BF16 = 4096, 14336, torch.bfloat16
CACHE = 200 << 20
CONFIGS = ((16384, 8), (16384, 16), (16384, 32), (2048, 4), (2048, 8), (4096, 8), (4096, 16), (8192, 16))


def activation(x: Tensor, block: int, warps: int) -> float8.Float8Rows:
    """`mlp.multiply_float8` in one configuration."""
    rows, features = x.shape[0], x.shape[1] // 2
    found = float8.empty_rows(rows, features, x)
    mlp._activation_mul_float8[(rows,)](
        x, found.values, found.scale, features, x.stride(0), KIND="silu", WHOLE=features <= block, BLOCK=block,
        num_warps=warps, **early.options(),
    )  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="16,512,8192")
    args = parser.parse_args()
    spec = RMSNormSpec(hidden=HIDDEN, eps=1e-5, dtype=DType.BFLOAT16)
    add = norm.add_rms_norm(AddRMSNormSpec(norm=spec))
    weight = torch.randn(HIDDEN, device="cuda", dtype=BF16)
    for rows in map(int, args.rows.split(",")):
        count = max(2, min(64, CACHE // (rows * HIDDEN * 2)))
        pairs = [[torch.randn(rows, HIDDEN, device="cuda", dtype=BF16) for _ in range(2)] for _ in range(count)]
        wides = [torch.randn(rows, 2 * INNER, device="cuda", dtype=BF16) for _ in range(max(2, count // 7))]
        cases: dict[str, tuple[list[Callable[[], object]], float]] = {
            "add norm": ([lambda p=p: add.run(p[0], p[1], weight) for p in pairs], 8),
            "add norm, FP8": ([lambda p=p: norm.add_rms_norm_float8(spec, *p, weight) for p in pairs], 7),
            "quantize": ([lambda p=p: float8.quantize(p[0]) for p in pairs], 3),
            "activation": ([lambda w=w: mlp.multiply(w, "silu") for w in wides], 6 * INNER / HIDDEN),
            "activation, FP8": ([lambda w=w: mlp.multiply_float8(w, "silu") for w in wides], 5 * INNER / HIDDEN),
            **{
                f"  {block} by {warps} warps": (
                    [lambda w=w, b=block, n=warps: activation(w, b, n) for w in wides],
                    5 * INNER / HIDDEN,
                )
                for block, warps in CONFIGS
            },
        }
        for name, (calls, num_bytes) in cases.items():
            took = timed(calls)
            floor = rows * HIDDEN * num_bytes / 4.3e6
            print(f"{rows:6} rows  {name:22} {took:8.1f} us  {floor / took:6.1%} of the bandwidth", flush=True)
    x = torch.randn(333, 2 * INNER, device="cuda", dtype=BF16)
    gate, up = x.double().chunk(2, 1)
    truth = torch.nn.functional.silu(gate) * up
    for block, warps in CONFIGS:
        found = activation(x, block, warps)
        error = (found.values.double() * found.scale[:, None] - truth).norm() / truth.norm()
        assert error < 0.04, (block, warps, error)
    print(f"triton {triton.__version__}: errors below 4 %")


if __name__ == "__main__":
    main()
