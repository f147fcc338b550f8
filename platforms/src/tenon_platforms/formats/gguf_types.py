"""GGML tensor types: ids, names, block sizes. Torch-free.

Source: the GGUF specification and ggml's type table. `SUPPORTED` are those whose meaning `gguf_reference.py` defines.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFType:
    """One tensor type. elements and bytes of a block; dtype: of types that are plain elements."""

    id: int
    name: str
    elements: int
    bytes: int
    dtype: DType | None = None


_TABLE = (
    GGUFType(id=0, name="F32", elements=1, bytes=4, dtype=DType.FLOAT32),
    GGUFType(id=1, name="F16", elements=1, bytes=2, dtype=DType.FLOAT16),
    GGUFType(id=2, name="Q4_0", elements=32, bytes=18),
    GGUFType(id=3, name="Q4_1", elements=32, bytes=20),
    GGUFType(id=6, name="Q5_0", elements=32, bytes=22),
    GGUFType(id=7, name="Q5_1", elements=32, bytes=24),
    GGUFType(id=8, name="Q8_0", elements=32, bytes=34),
    GGUFType(id=12, name="Q4_K", elements=256, bytes=144),
    GGUFType(id=13, name="Q5_K", elements=256, bytes=176),
    GGUFType(id=14, name="Q6_K", elements=256, bytes=210),
    GGUFType(id=30, name="BF16", elements=1, bytes=2, dtype=DType.BFLOAT16),
)
# Known to the format, not served: named so that an error can say which one a file holds.
KNOWN_NAMES = {
    4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64",
    28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip
BY_ID = {item.id: item for item in _TABLE}
BY_NAME = {item.name: item for item in _TABLE}
SUPPORTED = tuple(item.name for item in _TABLE)
