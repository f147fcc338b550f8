"""FP8 weights, whichever method stored them: one scale a tensor, a channel or a block; activations dynamic or static.

A scale for the whole tensor is repeated for every channel, so that parts merged into one linear keep their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError
from tenon_platforms.ops.linear import FP8Channel
from tenon_platforms.ops.quantized import FP8Block, FP8Static

from .module import ModuleTensors, QuantizedModule

if TYPE_CHECKING:
    from tenon_platforms.ops.weights import PartTensors

FLOATS = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
SCALES = ("weight_scale", "weight_scale_inv")  # the second is what DeepSeek calls the same: it is multiplied with
INPUT_SCALES = ("input_scale", "activation_scale")


def float8_module(
    tensors: ModuleTensors, *, block: tuple[int, int] | None = None, static: bool = False
) -> QuantizedModule | None:
    """The FP8 weight of a module, or None where its weight is stored in another type without scales.

    block: rows and columns that share a scale, else a scale is the tensor's or a channel's. static: the activations'
    scale is stored.
    """
    if not tensors.has("weight"):
        return None
    if tensors.dtype("weight") is not DType.FLOAT8_E4M3:
        if any(map(tensors.has, SCALES)):
            raise tensors.wrong("weight", "float8_e4m3, since it has a scale")
        if tensors.dtype("weight") is DType.FLOAT8_E5M2:
            raise ConfigError(
                f"tensor {tensors.full('weight')!r} is float8_e5m2: FP8 weights are served as float8_e4m3",
                remedy="use a checkpoint in e4m3",
            )
        return None
    rows, columns = tensors.matrix("weight", DType.FLOAT8_E4M3)
    word = tensors.first(*SCALES)
    if block is not None:
        return _blocks(tensors, word, (rows, columns), block)
    tensors.expect(word, ((), (1,), (rows,), (rows, 1)), *FLOATS)
    given = tensors.first(*INPUT_SCALES) if static else None
    if given is not None:
        tensors.expect(given, ((), (1,)), *FLOATS)

    def load() -> PartTensors:
        scale = tensors.scale(word).reshape(-1).expand(rows).contiguous()
        found = {"weight": tensors.read("weight"), "scale": scale}
        if given is not None:
            found["input_scale"] = tensors.scale(given).reshape(1)
        return found

    return QuantizedModule(
        scheme=FP8Static() if static else FP8Channel(),
        shape=(rows, columns),
        stored=tuple(tensors.full(one) for one in ("weight", word, given) if one is not None),
        load=load,
    )


def _blocks(tensors: ModuleTensors, word: str, shape: tuple[int, int], block: tuple[int, int]) -> QuantizedModule:
    grid = (-(-shape[0] // block[0]), -(-shape[1] // block[1]))
    tensors.expect(word, (grid,), *FLOATS)

    def load() -> PartTensors:
        return {"weight": tensors.read("weight"), "scale": tensors.scale(word).contiguous()}

    return QuantizedModule(
        scheme=FP8Block(rows=block[0], columns=block[1]),
        shape=shape,
        stored=(tensors.full("weight"), tensors.full(word)),
        load=load,
    )
