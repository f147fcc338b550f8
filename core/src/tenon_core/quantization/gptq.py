"""`quant_method: gptq`, of AutoGPTQ and GPTQModel: groups of 4 or 8 bits, with columns in order or by their group.

    qweight int32 [in * bits / 32, out], codes along `in` from the lowest bits up
    qzeros  int32 [groups, out * bits / 32], along `out`; stored less one, but for checkpoint_format "gptq_v2"
    scales  float16 [groups, out]      g_idx int32 [in], each column's group

Source: GPTQ (arXiv 2210.17323) and the description of AutoGPTQ's format. Zero points wrap around, as there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError
from tenon_platforms.ops.quantized import IntGroups

from .float8 import FLOATS
from .module import ModuleTensors, QuantizedModule, unsupported, whole

if TYPE_CHECKING:
    from torch import Tensor

    from tenon_platforms.ops.weights import PartTensors

FORMATS = ("gptq", "gptq_v2")


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTQ:
    """A `Method`. is_symmetric: all zero points are the middle code. offset: what stored zero points lack."""

    scheme: IntGroups
    offset: int

    def module(self, tensors: ModuleTensors) -> QuantizedModule | None:
        """The weight of a module that has a qweight."""
        if not tensors.has("qweight"):
            return None
        scheme, each = self.scheme, 32 // self.scheme.bits
        depth, rows = tensors.matrix("qweight", DType.INT32)
        columns = depth * each
        groups = scheme.num_groups(columns)
        if rows % each:
            raise tensors.wrong("qweight", f"a whole number of {each} columns")
        tensors.expect("qzeros", ((groups, rows // each),), DType.INT32)
        tensors.expect("scales", ((groups, rows),), *FLOATS)
        stored = ["qweight", "qzeros", "scales"]
        if scheme.ordered or tensors.has("g_idx"):
            tensors.expect("g_idx", ((columns,),), DType.INT32)
            stored.append("g_idx")

        return QuantizedModule(
            scheme=scheme,
            shape=(rows, columns),
            stored=tuple(map(tensors.full, stored)),
            load=lambda: self._load(tensors, columns),
        )

    def _load(self, tensors: ModuleTensors, columns: int) -> PartTensors:
        from .packing import codes_of_words, words_as_bytes

        scheme = self.scheme
        scale = tensors.read("scales").t().contiguous()
        tensors.check_finite("scales", scale)
        found = {"weight": words_as_bytes(tensors.read("qweight").t()), "scale": scale}
        most = (1 << scheme.bits) - 1
        stored = codes_of_words(tensors.read("qzeros"), scheme.bits)  # [groups, out]
        zero = ((stored + self.offset) & most).t().contiguous()
        if scheme.zeros:
            found["zero"] = zero
        elif not bool((zero == 1 << (scheme.bits - 1)).all()):
            raise ConfigError(
                f"tensor {tensors.full('qzeros')!r} holds zero points other than {1 << (scheme.bits - 1)}, though the"
                " quantization_config says sym",
                remedy="correct sym or checkpoint_format in the configuration, or download the checkpoint again",
            )
        if tensors.has("g_idx"):
            group = tensors.read("g_idx")
            check_groups(tensors, "g_idx", group, scheme, columns)
            if scheme.ordered:
                found["group"] = group
        return found


def check_groups(tensors: ModuleTensors, word: str, group: Tensor, scheme: IntGroups, columns: int) -> None:
    """Raise `ConfigError` for a group that there is not, or columns out of order where the scheme says in order."""
    import torch

    if not bool(((group >= 0) & (group < scheme.num_groups(columns))).all()):
        raise ConfigError(
            f"tensor {tensors.full(word)!r} names a group outside of 0 to {scheme.num_groups(columns) - 1}",
            remedy="download the checkpoint again",
        )
    if not scheme.ordered and not torch.equal(group.long(), torch.arange(columns) // (scheme.group_size or columns)):
        raise ConfigError(
            f"tensor {tensors.full(word)!r} puts columns out of order, which the quantization_config does not say",
            remedy="correct desc_act in the configuration, or download the checkpoint again",
        )


def read(config: Mapping[str, Any]) -> GPTQ:
    """The method that a configuration describes; raises `ConfigError`."""
    form = config.get("checkpoint_format") or config.get("format") or "gptq"
    if form not in FORMATS:
        raise unsupported(f"GPTQ in the format {form!r:.80}", ", ".join(FORMATS))
    rules = config.get("dynamic") or {}
    if not isinstance(rules, dict) or any(not str(rule).startswith("-:") for rule in rules):
        raise unsupported("GPTQ whose modules differ (dynamic)", "one kind for all, and modules left out")
    size = group_size(config)
    return GPTQ(
        scheme=IntGroups(
            bits=whole(config, "bits", (4, 8)),
            group_size=size,
            zeros=not flag(config, "sym", default=True),
            ordered=flag(config, "desc_act", default=False) and size > 0,
        ),
        offset=1 if form == "gptq" else 0,
    )


def group_size(config: Mapping[str, Any]) -> int:
    """Columns that share a scale; 0 for -1, the whole row."""
    return 0 if config.get("group_size") == -1 else whole(config, "group_size")


def flag(config: Mapping[str, Any], key: str, *, default: bool) -> bool:
    """A yes or no of a quantization configuration; raises `ConfigError` for anything else."""
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise ConfigError(f"quantization_config has {key} = {value!r:.80}: expected true or false")
    return value
