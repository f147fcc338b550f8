"""Ways to do paged decode attention with torch alone, compared: why the cache keeps keys transposed.

    python plugins/cpu/benchmarks/attention.py [--heads 9] [--kv-heads 3] [--dim 64] [--threads 0]

Prints the best and the median microseconds of one layer, interleaved, for random block tables:
    bags         the platform's: weighted sums of lines where they lie (`tenon_cpu.attention`)
    gather+sdpa  the context's blocks copied, then scaled_dot_product_attention
    gather+bmm   the context's blocks copied, then two batched products
    views        two batched products on a context that happens to be consecutive: no paging, the bound of bmm
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tenon_cpu import kv_cache
from tenon_cpu.attention import CPUAttention
from tenon_cpu.step_memo import StepMemo
from tenon_platforms.batch import AttentionBatch, GQAInputs, HostBatch
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.shapes import ShapeKey


def decode_batch(table: Tensor, block_size: int, length: int) -> AttentionBatch:
    """Every row decodes one token at the end of `length`."""
    rows = len(table)
    host = HostBatch(
        num_tokens=rows,
        num_rows=rows,
        num_logits=rows,
        num_decodes=rows,
        query_lens=np.ones(rows, dtype=np.int32),
        seq_lens=np.full(rows, length, dtype=np.int32),
        max_query=1,
        max_seq=length,
    )
    return AttentionBatch(
        block_table=table,
        block_size=block_size,
        rows=torch.arange(rows, dtype=torch.int32),
        query_starts=torch.arange(rows + 1, dtype=torch.int32),
        seq_lens=torch.full((rows,), length, dtype=torch.int32),
        token_rows=torch.arange(rows, dtype=torch.int32),
        positions=torch.full((1, rows), length - 1, dtype=torch.int32),
        num_valid=torch.tensor([rows, rows, rows], dtype=torch.int32),
        key=ShapeKey(tokens=rows, rows=rows, logits=rows, max_query=1, blocks=table.shape[1]),
        host=host,
    )


def ways(spec: AttentionSpec, rows: int, length: int, block_size: int) -> dict[str, Callable[[], Tensor]]:
    """One call a way; all see the same shapes."""
    heads, kv_heads, dim, group = spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.num_heads // spec.num_kv_heads
    count = -(-length // block_size)
    total = 2 * rows * count + 1
    table = (torch.randperm(total - 1)[: rows * count] + 1).to(torch.int32).view(rows, count)
    backend = CPUAttention(spec, StepMemo(), Device())
    cache = backend.allocate(total, block_size, 1)[0].normal_()
    query = torch.randn(rows, heads, dim)
    plan = backend.plan(decode_batch(table, block_size, length))
    grouped = query.view(rows * kv_heads, group, dim)
    keys = kv_cache.keys_of(cache, dim).transpose(2, 3).contiguous()  # [blocks, kv heads, block_size, dim]
    values = kv_cache.values_of(cache, dim)
    lines = (table[:, None, :] * kv_heads + torch.arange(kv_heads, dtype=torch.int32)[:, None]).reshape(-1)
    flat_k, flat_v = keys.view(-1, block_size * dim), values.reshape(-1, block_size * dim)
    whole_k, whole_v = (torch.randn(rows * kv_heads, length, dim) for _ in range(2))

    def gathered() -> tuple[Tensor, Tensor]:
        shape = (rows * kv_heads, count * block_size, dim)
        return tuple(flat.index_select(0, lines).view(shape)[:, :length] for flat in (flat_k, flat_v))  # type: ignore[return-value]

    def with_sdpa() -> Tensor:
        k, v = (part.view(rows, kv_heads, -1, dim) for part in (x.contiguous() for x in gathered()))
        return scaled_dot_product_attention(query.view(rows, heads, 1, dim), k, v, enable_gqa=True, scale=spec.scale)

    def products(k: Tensor, v: Tensor) -> Tensor:
        return torch.bmm(torch.bmm(grouped, k.transpose(1, 2)).mul_(spec.scale).softmax(-1), v)

    return {
        "bags": lambda: backend.run(GQAInputs(query=query, cache=cache), plan),
        "gather+sdpa": with_sdpa,
        "gather+bmm": lambda: products(*gathered()),
        "views": lambda: products(whole_k, whole_v),
        "plan (a step)": lambda: backend.plan(decode_batch(table, block_size, length)) and query,
    }


def compare(calls: dict[str, Callable[[], Tensor]], seconds: float) -> dict[str, list[float]]:
    """Microseconds of every call, interleaved for `seconds`."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e6)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    spec = AttentionSpec(
        num_heads=args.heads,
        num_kv_heads=args.kv_heads,
        head_dim=args.dim,
        scale=args.dim**-0.5,
        dtype=DType.FLOAT32,
        kv_dtype=DType.FLOAT32,
    )
    print(
        f"heads {args.heads}/{args.kv_heads} x {args.dim}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    with torch.inference_mode():
        for rows, length, size in (
            (1, 256, 64),
            (1, 1024, 64),
            (16, 256, 32),
            (16, 256, 64),
            (16, 512, 64),
            (16, 1024, 64),
        ):
            times = compare(ways(spec, rows, length, size), args.seconds)
            cells = "  ".join(f"{name} {min(us):.0f} ({statistics.median(us):.0f})" for name, us in times.items())
            print(f"rows {rows:2} context {length:4} block {size}: {cells}")


if __name__ == "__main__":
    main()
