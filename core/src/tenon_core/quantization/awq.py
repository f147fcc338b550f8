"""`quant_method: awq`, of AutoAWQ: groups of 4 bits with zero points, in the layout of its GEMM kernels.

    qweight int32 [in, out / 8], along `out`      qzeros int32 [groups, out / 8], the same      scales [groups, out]

Nibble i of a word is column ORDER[i] of its eight. Source: AWQ (arXiv 2306.00978) and AutoAWQ's packing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenon_platforms.dtypes import DType
from tenon_platforms.ops.quantized import IntGroups

from .float8 import FLOATS
from .gptq import flag, group_size
from .module import ModuleTensors, QuantizedModule, unsupported, whole

if TYPE_CHECKING:
    from torch import Tensor

    from tenon_platforms.ops.weights import PartTensors

PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # the nibble of each column: ORDER is 0, 2, 4, 6, 1, 3, 5, 7
EACH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AWQ:
    """A `Method`."""

    scheme: IntGroups

    def module(self, tensors: ModuleTensors) -> QuantizedModule | None:
        """The weight of a module that has a qweight."""
        if not tensors.has("qweight"):
            return None
        columns, words = tensors.matrix("qweight", DType.INT32)
        if columns % 2:
            raise tensors.wrong("qweight", "an even number of rows")
        groups = self.scheme.num_groups(columns)
        tensors.expect("qzeros", ((groups, words),), DType.INT32)
        tensors.expect("scales", ((groups, words * EACH),), *FLOATS)
        return QuantizedModule(
            scheme=self.scheme,
            shape=(words * EACH, columns),
            stored=tuple(map(tensors.full, ("qweight", "qzeros", "scales"))),
            load=lambda: _load(tensors),
        )


def _load(tensors: ModuleTensors) -> PartTensors:
    from .packing import bytes_of_codes

    scale = tensors.read("scales").t().contiguous()
    tensors.check_finite("scales", scale)
    codes = _columns(tensors.read("qweight")).t()  # [out, in]
    return {
        "weight": bytes_of_codes(codes, 4),
        "scale": scale,
        "zero": _columns(tensors.read("qzeros")).t().contiguous(),
    }


def _columns(words: Tensor) -> Tensor:
    """uint8 codes [rows, out] of words [rows, out / 8]."""
    from .packing import codes_of_words

    nibbles = codes_of_words(words, 4).reshape(words.shape[0], -1, EACH)
    return nibbles[:, :, list(PLACES)].flatten(1)


def read(config: Mapping[str, Any]) -> AWQ:
    """The method that a configuration describes; raises `ConfigError`."""
    version = str(config.get("version") or "gemm").lower()
    if version != "gemm":
        raise unsupported(f"AWQ in the layout {version!r:.80}", "gemm")
    whole(config, "bits" if "bits" in config else "w_bit", (4,))
    if not flag(config, "zero_point", default=True):
        raise unsupported("AWQ without zero points", "those with them")
    size = group_size(config if "group_size" in config else {"group_size": config.get("q_group_size")})
    return AWQ(scheme=IntGroups(bits=4, group_size=size, zeros=True))
