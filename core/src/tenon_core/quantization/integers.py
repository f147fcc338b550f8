"""Integer weights of compressed-tensors: int8 with a scale a channel, and codes of 4 or 8 bits packed into words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError
from tenon_platforms.ops.quantized import Int8Channel, IntGroups

from .float8 import FLOATS
from .gptq import check_groups
from .module import ModuleTensors, QuantizedModule

if TYPE_CHECKING:
    from tenon_platforms.ops.weights import PartTensors


def int8_module(tensors: ModuleTensors) -> QuantizedModule:
    """An int8 weight with a scale a channel, or one for all."""
    tensors.first("weight")
    rows, columns = tensors.matrix("weight", DType.INT8)
    tensors.expect("weight_scale", ((), (1,), (rows,), (rows, 1)), *FLOATS)

    def load() -> PartTensors:
        scale = tensors.scale("weight_scale").reshape(-1).expand(rows).contiguous()
        return {"weight": tensors.read("weight"), "scale": scale}

    stored = ("weight", "weight_scale")
    return QuantizedModule(
        scheme=Int8Channel(), shape=(rows, columns), stored=tuple(map(tensors.full, stored)), load=load
    )


def packed_module(tensors: ModuleTensors, *, bits: int, group_size: int, zeros: bool) -> QuantizedModule:
    """Codes in words along `in`, the lowest bits first; codes and zero points are stored above -2^(bits - 1)."""
    tensors.first("weight_packed")
    each = 32 // bits
    rows, words = tensors.matrix("weight_packed", DType.INT32)
    tensors.expect("weight_shape", ((2,),), DType.INT64, DType.INT32)
    columns = words * each
    scheme = IntGroups(bits=bits, group_size=group_size, zeros=zeros, ordered=tensors.has("weight_g_idx"))
    groups = scheme.num_groups(columns)
    tensors.expect("weight_scale", ((rows, groups),), *FLOATS)
    stored = ["weight_packed", "weight_shape", "weight_scale"]
    if zeros:
        tensors.expect("weight_zero_point", ((-(-rows // each), groups),), DType.INT32)
        stored.append("weight_zero_point")
    if scheme.ordered:
        tensors.expect("weight_g_idx", ((columns,),), DType.INT32)
        stored.append("weight_g_idx")

    def load() -> PartTensors:
        from .packing import codes_of_words, words_as_bytes

        if (said := tensors.read("weight_shape").tolist()) != [rows, columns]:
            raise ConfigError(
                f"tensor {tensors.full('weight_shape')!r} says {said}, {tensors.full('weight_packed')!r} holds"
                f" {[rows, columns]}: rows that do not fill whole words are not served",
                remedy="use another checkpoint of the model, or download it again",
            )
        scale = tensors.read("weight_scale")
        tensors.check_finite("weight_scale", scale)
        found = {"weight": words_as_bytes(tensors.read("weight_packed")), "scale": scale}
        if zeros:
            found["zero"] = codes_of_words(tensors.read("weight_zero_point").t(), bits).t()[:rows].contiguous()
        if scheme.ordered:
            group = tensors.read("weight_g_idx")
            check_groups(tensors, "weight_g_idx", group, scheme, columns)
            found["group"] = group
        return found

    return QuantizedModule(scheme=scheme, shape=(rows, columns), stored=tuple(map(tensors.full, stored)), load=load)
