"""What the CPU platform can do on the machine it runs on, as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tenon_platforms.adjustments import Adjustment
from tenon_platforms.capabilities import Capabilities, Determinism
from tenon_platforms.dtypes import DType

from .isa import CPU

TYPES = (
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q4_K",
    "Q5_K",
    "Q6_K",
)  # of blocks that the native library computes on

GROUPS = ("32", "64", "128", "-row")  # of columns with one scale, where they become whole blocks
WHO = "cpu"


def capabilities(cpu: CPU, *, is_native: bool, inplace: bool) -> Capabilities:
    """dtypes: those with instructions of their own first. inplace: GGUF blocks are computed on directly, by the native
    library those of every type, by torch the 4-bit ones.
    """
    schemes = {"dense-*": "native"}
    if inplace:
        types = TYPES if is_native else ("Q4_0", "Q4_1")
        schemes |= {f"gguf-{name.lower()}": "native" for name in types}
        if is_native:
            schemes |= {f"int4-group{size}{zeros}": "native" for size in GROUPS for zeros in ("", "-zeros")}
            schemes |= {f"int8-group{size}": "native" for size in GROUPS}
            schemes["int8-channel"] = "native"
    return Capabilities(
        dtypes=_dtypes(cpu),
        kv_dtypes=(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16, *((DType.INT8,) if is_native else ())),
        schemes={**schemes, **dict.fromkeys(("gguf-*", "fp8-*", "int8-*", "int4-*"), "dequantize")},
        determinism=Determinism.BATCH,
    )


def adjustments(cpu: CPU, requested: Mapping[str, Any], *, is_native: bool) -> Iterator[Adjustment]:
    """What "auto" means on this machine. Float32 is never less exact than what it stands for."""
    dtype = requested.get("dtype")
    if dtype == "auto" and not cpu.has_bf16:
        yield Adjustment(
            field="dtype",
            requested="auto",
            effective=DType.FLOAT32.value,
            reason=f"{cpu.name} ({cpu.arch}) has no bfloat16 or float16 products: float32 is faster and more exact",
            severity="performance",
            who=WHO,
        )
    becomes_half = dtype in ("bfloat16", "float16", "half") or (dtype == "auto" and cpu.has_bf16)
    if requested.get("kv_cache_dtype") == "auto" and becomes_half and not is_native:
        yield Adjustment(
            field="kv_cache_dtype",
            requested="auto",
            effective=DType.FLOAT32.value,
            reason="decode attention sums in the cache's type: float32 is faster and more exact here",
            severity="performance",
            who=WHO,
        )


def _dtypes(cpu: CPU) -> tuple[DType, ...]:
    if not cpu.has_bf16:
        return (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
    half = (DType.FLOAT16,) if cpu.has_fp16 else ()
    return (DType.BFLOAT16, DType.FLOAT32, *half)
