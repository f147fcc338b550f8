"""Compiles the attention kernels ahead of time, no device needed: `python compile_attention.py cuda:90 [NAME ...]`.

A process of its own, since the interpreter of the other tests and the compiler exclude each other. Every entry is what
the backend would launch on such a device, by the table of configurations. Prints a line a kernel: its name, warps,
stages, bytes of shared memory, how many registers are spilled where the target's tools tell, and how one-byte floats
are made.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import triton

sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))

from ahead_of_time import has_early_launch, source_of, spills, target_of
from kernels_to_compile import Entry

from tenon_triton.attention import kv_cache
from tenon_triton.attention.configs import JOIN_ELEMENTS, MIN_ROWS, attention_configs, next_power
from tenon_triton.attention.decode import decode_kernel, join_kernel
from tenon_triton.attention.prefill import prefill_kernel
from tenon_triton.facts import CACHE_LINE, DeviceFacts

SHARED = {  # bytes a program may use
    "cuda:80": 163 * 1024,
    "cuda:90": 227 * 1024,
    "cuda:100": 227 * 1024,
    "cuda:120": 99 * 1024,
    "hip:gfx942": 64 * 1024,
    "hip:gfx950": 160 * 1024,
    "hip:gfx1100": 64 * 1024,
}
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8e4nv": 1}
STRANDS = ("llama", "qwen", "page16", "oss", "float8")  # what they are compiled for: no table names them yet
NO_FP8 = ("cuda:80",)


def facts_of(target: str) -> DeviceFacts:
    """A device of this kind."""
    return DeviceFacts(
        compute_units=132, shared_bytes=SHARED[target], fp8=target not in NO_FP8, async_copies=target.startswith("cuda")
    )


def entries(
    target: str, name: str, dim: int, group: int, dtype: str, kv: str, page: int, **options: Any
) -> Iterator[tuple[str, Entry]]:
    """Decode, join, few tokens, many tokens."""
    configs = attention_configs(dim, group, BYTES[kv], BYTES[dtype], facts_of(target))
    window, cap, sinks = options.get("window", 0), options.get("cap", False), options.get("sinks", False)
    q, cache, i32 = f"*{dtype}", f"*{kv}", "*i32"
    common = {
        "output": q, "query": q, "cache": cache, "block_table": i32, "rows": i32, "query_starts": i32, "seq_lens": i32,
        "sinks": "*bf16" if sinks else None, "table_stride": "i32", "block_stride": "i32", "query_token_stride": "i32",
        "query_head_stride": "i32", "output_token_stride": "i32", "scale": "fp32", "cap": "fp32", "NUM_KV_HEADS": 8,
        "GROUP": group, "DIM": dim, "DIM_PAD": next_power(dim), "PAGE": page, "WINDOW": window, "SOFT_CAP": cap,
        "SINKS": sinks, "APART": False,
    }  # fmt: skip
    joined = {"max_parts": "i32", "parts_mixed": "*fp32", "parts_log": "*fp32"}
    assert configs.few is not None
    strands = replace(configs.few, tile=128, warps=4, stages=2, fetches=3, strands=4)
    for label, decode in (
        ("decode", configs.decode), ("few", configs.few), ("whole", configs.whole), ("strands", strands)
    ):  # fmt: skip
        if decode is None or (decode is strands and name not in STRANDS):
            continue
        arguments = {
            **common, **joined, "arrivals": i32, "TILE": decode.tile, "BLOCK_ROWS": max(MIN_ROWS, next_power(group)),
            "LINES": next_power(group), "CHUNK": max(JOIN_ELEMENTS // (next_power(dim) * next_power(group)), 1),
            "CACHE_LINES": max(1, next_power(dim) * BYTES[kv] // CACHE_LINE) if decode.fetches else 0,
            "FETCHES": decode.fetches, "STRANDS": decode.strands, "JOIN": decode.join, "TAIL": decode.tail,
            "MIN_TILES": -(-decode.min_tokens // decode.tile),
        }  # fmt: skip
        yield from both(f"{label} {name}", decode_kernel, arguments, decode.warps, decode.stages)
    for label, config in (("short", configs.short), ("long", configs.long)):
        arguments = {
            **common, "first_row": "i32", "num_rows": "i32", "TILE": config.tile,
            "BLOCK_ROWS": config.block_rows, "CAUSAL": options.get("causal", True),
        }  # fmt: skip
        yield from both(f"{label} {name}", prefill_kernel, arguments, config.warps, config.stages)
    if name == "llama":
        keys = ("output", "query_starts", "seq_lens", "output_token_stride", "DIM", "DIM_PAD", "WINDOW", "APART")
        arguments = {
            **{key: common[key] for key in keys}, **joined, "NUM_HEADS": 8 * group, "TILE": configs.decode.tile,
            "MIN_TILES": -(-configs.decode.min_tokens // configs.decode.tile),
            "CHUNK": JOIN_ELEMENTS // next_power(dim),
        }  # fmt: skip
        yield from both("join llama", join_kernel, arguments, 4, 1)
        yield (
            "copy",
            Entry(
                kernel=kv_cache.copy_kernel,
                arguments={
                    "words": i32,
                    "source": i32,
                    "target": i32,
                    "layer_words": "i64",
                    "block_words": "i32",
                    "WIDTH": 2048,
                },
            ),
        )
    yield f"write {name}", Entry(
        kernel=kv_cache.write_kernel,
        arguments={
            "cache": cache, "key": q, "value": q, "slots": i32, "block_stride": "i32", "key_stride": "i32",
            "key_head_stride": "i32", "value_stride": "i32", "value_head_stride": "i32", "NUM_KV_HEADS": 8, "DIM": dim,
            "PAGE": page, "WIDTH": next_power(8 * dim), "GREATEST": 448.0 if kv == "fp8e4nv" else 0.0,
        },
    )  # fmt: skip


def both(name: str, kernel: Any, arguments: dict[str, Any], warps: int, stages: int) -> Iterator[tuple[str, Entry]]:
    """A kernel, and for one model's shape, in either kind of cache, as it is in captured steps with prompts too."""
    yield name, Entry(kernel=kernel, arguments=arguments, warps=warps, stages=stages)
    if name.endswith((" llama", " float8")):
        yield (
            f"{name} apart",
            Entry(kernel=kernel, arguments={**arguments, "APART": True}, warps=warps, stages=stages),
        )


def all_entries(target: str) -> dict[str, Entry]:
    """What is compiled for a target: models' shapes, and each option once."""
    found: dict[str, Entry] = {}
    for arguments, options in (
        (("llama", 128, 4, "bf16", "bf16", 64), {}),
        (("qwen", 128, 2, "bf16", "bf16", 64), {}),
        (("page16", 128, 4, "bf16", "bf16", 16), {}),
        (("gemma", 256, 2, "bf16", "bf16", 64), {"window": 1024, "cap": True}),
        (("oss", 64, 8, "bf16", "bf16", 64), {"window": 128, "sinks": True}),
        (("phi96", 96, 1, "fp16", "fp16", 64), {}),
        (("dim80", 80, 1, "fp16", "fp16", 64), {"causal": False}),
        (("float32", 64, 3, "fp32", "fp32", 64), {}),
        (("float8", 128, 4, "bf16", "fp8e4nv", 64), {}),
    ):
        if arguments[4] != "fp8e4nv" or target not in NO_FP8:
            found.update(entries(target, *arguments, **options))
    return found


def conversions(compiled: Any) -> str:
    """How values are bounded and made one byte, where that is done and the target's assembly tells."""
    found = re.findall(r"\b(?:(?:min|max)(?:\.NaN)?\.f32|cvt\.[.\w]*e4m3x2\.f32)", compiled.asm.get("ptx", ""))
    return f" stores={','.join(sorted(set(found)))}" if any("e4m3" in one for one in found) else ""


def main(target_name: str, names: list[str]) -> int:
    """Compile what is named, or all; 1 where one failed."""
    target, failed = target_of(target_name), False
    for name, entry in all_entries(target_name).items():
        if names and name not in names:
            continue
        try:
            source = source_of(entry, early=has_early_launch(target_name))
            compiled = triton.compile(source, target=target, options=entry.options)
        except Exception as error:  # noqa: BLE001  the caller reads which kernel failed
            print(f"{name} FAILED: {error.__cause__ or error}", flush=True)
            failed = True
            continue
        shared = compiled.metadata.shared
        numbers = f"warps={entry.warps} stages={entry.stages} shared={shared} spills={spills(compiled)}"
        print(f"{name} {numbers}{conversions(compiled)}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
