"""Weight schemes of quantized safetensors checkpoints, in one canonical form whatever tool wrote the file. Torch-free.

Weights are [out, in]; a leading expert axis may stand before every tensor. `quantized_reference.py` gives the meaning.
Scales multiply: w = code * scale. What a scheme does to activations is what a kernel may do at most: it may leave them
as they are, or round them less (a scale a token instead of one for all).
"""

from __future__ import annotations

from dataclasses import dataclass

from .linear import WeightScheme


@dataclass(frozen=True, kw_only=True)
class FP8Static(WeightScheme):
    """`weight` float8_e4m3fn [out, in], `scale` float32 [out], `input_scale` float32 [1].

    Activations: q = x / input_scale, clamped to 448 and rounded to e4m3; the scale comes from calibration.
    """

    @property
    def id(self) -> str:
        return "fp8-static"


@dataclass(frozen=True, kw_only=True)
class FP8Block(WeightScheme):
    """`weight` float8_e4m3fn [out, in], `scale` float32 [ceil(out / rows), ceil(in / columns)]: one a block (DeepSeek).

    Activations: e4m3 with a scale for every token and run of `columns` features, max(|x|) / 448 (arXiv 2412.19437).
    """

    rows: int = 128
    columns: int = 128

    @property
    def id(self) -> str:
        return "fp8-block"


@dataclass(frozen=True, kw_only=True)
class Int8Channel(WeightScheme):
    """`weight` int8 [out, in] and `scale` float32 [out].

    Activations: int8 with a scale a token: q = round(x / s), s = max(|x|) / 127 (arXiv 2211.10438).
    """

    @property
    def id(self) -> str:
        return "int8-channel"


@dataclass(frozen=True, kw_only=True)
class IntGroups(WeightScheme):
    """Codes of 4 or 8 bits, a scale for every `group_size` columns of a row; activations stay as they are.

    weight: uint8 [out, in] of 8-bit codes; of 4-bit ones [out, in / 2], column 2 i low and 2 i + 1 high in byte i.
    scale: float16, bfloat16 or float32 [out, groups]. zero: uint8 [out, groups], of schemes with `zeros`.
    group: int32 [in], the group of each column, of schemes that are `ordered`; else column i is in i // group_size.

        w[o, i] = scale[o, g] * (code[o, i] - zero[o, g])        zero = 2^(bits - 1) without `zeros`

    group_size 0: one group, the whole row. Sources: GPTQ (arXiv 2210.17323), AWQ (arXiv 2306.00978).
    """

    bits: int
    group_size: int
    zeros: bool = False
    ordered: bool = False

    @property
    def id(self) -> str:
        grain = str(self.group_size) if self.group_size else "-row"
        return f"int{self.bits}-group{grain}{'-zeros' if self.zeros else ''}{'-ordered' if self.ordered else ''}"

    def num_groups(self, columns: int) -> int:
        """Groups of a row of so many columns."""
        return -(-columns // self.group_size) if self.group_size else 1
