"""Linear layers: weight schemes, and the merged linear whose parts each have their own.

Torch-free. A *scheme* says how a weight is stored and what it means; `linear_reference.py` gives the meaning in torch.
Those of quantized checkpoints are in `quantized.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..dtypes import DType
from .spec import Spec


@dataclass(frozen=True, kw_only=True)
class WeightScheme(Spec):
    """How a [out, in] weight is stored. Subclasses name the tensors of a part's weights."""

    op: ClassVar[str] = "scheme"

    @property
    def id(self) -> str:
        """The name used by capabilities and messages."""
        raise NotImplementedError

    def summary(self) -> str:
        """Its name, which tells all that differs."""
        return self.id


@dataclass(frozen=True, kw_only=True)
class Dense(WeightScheme):
    """One tensor `weight` [out, in] of `stored`; computed in the linear's dtype."""

    stored: DType

    @property
    def id(self) -> str:
        return f"dense-{self.stored}"


@dataclass(frozen=True, kw_only=True)
class GGUFBlocks(WeightScheme):
    """One tensor `blocks` uint8 [out, bytes of a row], in the GGML block format `type` (`formats/gguf_types.py`)."""

    type: str

    @property
    def id(self) -> str:
        return f"gguf-{self.type.lower()}"


@dataclass(frozen=True, kw_only=True)
class FP8Channel(WeightScheme):
    """`weight` float8_e4m3fn [out, in] and `scale` float32 [out]: w = weight * scale (arXiv 2209.05433).

    Activations are quantized as they come, a scale a token: x ~ q * max(|x|) / 448. A kernel may keep more of them.
    """

    @property
    def id(self) -> str:
        return "fp8-channel"


@dataclass(frozen=True, kw_only=True)
class LinearPart(Spec):
    """One of the weights that a merged linear computes together, such as `q`, `k`, `v`.

    shard: what tensor parallelism splits: "out" (columns of y), "in" (columns of x; results are summed) or "none".
    shard_unit: features that must stay together (a head's dim). adapters: whether a LoRA delta may be added to it.
    """

    name: str
    out_features: int
    scheme: WeightScheme
    shard: str = "none"
    shard_unit: int = 1
    adapters: bool = True


@dataclass(frozen=True, kw_only=True)
class MergedLinearSpec(Spec):
    """y = x W^T + b for the concatenation of `parts` along y's last axis."""

    op: ClassVar[str] = "merged_linear"
    in_features: int
    parts: tuple[LinearPart, ...]
    dtype: DType
    bias: bool = False

    @property
    def out_features(self) -> int:
        """Columns of y."""
        return sum(part.out_features for part in self.parts)

    @property
    def schemes(self) -> tuple[WeightScheme, ...]:
        """Each part's scheme."""
        return tuple(part.scheme for part in self.parts)
