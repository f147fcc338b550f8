"""Quantized safetensors checkpoints of tiny models, packed here from each format's description; knows none of our code.

A format turns one weight [out, in] into the tensors of its file and the weight they mean. Codes fill 32 bits from the
lowest up, but for AWQ's, which have an order of their own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Rounding = Callable[[Tensor], Tensor]
Array = npt.NDArray[Any]
Encode = Callable[[Array, float], tuple[dict[str, Tensor], Array]]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble i of a word is column ORDER[i] of eight
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, kw_only=True)
class Format:
    """config: its quantization_config. encode(weight, input_max): (tensors, meant weight). rounding: of activations."""

    config: dict[str, Any]
    encode: Encode
    scheme: str
    rounding: Callable[[float], Rounding] | None = None


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """A written checkpoint: its folder, a plain one of what it means, and the largest input of every linear."""

    path: Path
    meant: Path
    input_max: dict[str, float] = field(default_factory=dict)


def write(source: Path, folder: Path, form: Format, input_max: dict[str, float] | None = None) -> Quantized:
    """Quantize the linears of a saved checkpoint. Norms, embeddings, the head and routers stay as they are."""
    tensors, plain, meant = load_file(source / "model.safetensors"), {}, {}
    for name, value in tensors.items():
        module = name.removesuffix(".weight")
        if not is_linear(name, value):
            plain[name] = meant[name] = value
            continue
        made, weight = form.encode(value.double().numpy(), (input_max or {}).get(module, 1.0))
        plain |= {f"{module}.{word}": one.contiguous() for word, one in made.items()}
        meant[name] = torch.from_numpy(weight).float().contiguous()
    found = Quantized(path=folder / "quantized", meant=folder / "meant", input_max=input_max or {})
    for path, held in ((found.path, plain), (found.meant, meant)):
        shutil.copytree(source, path)
        save_file(held, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (found.path / "config.json").write_text(json.dumps({**config, "quantization_config": form.config}))
    return found


def is_linear(name: str, value: Tensor) -> bool:
    """Whether a tensor is the weight of a linear layer that gets quantized."""
    kept = ("lm_head", "embed_tokens", "mlp.gate.weight", "block_sparse_moe.gate.weight")
    return value.dim() == 2 and name.endswith(".weight") and not any(one in name for one in kept)


def bits_of(codes: Array, bits: int, axis: int) -> Tensor:
    """Codes packed along an axis into int32 words, the first in the lowest bits; zeros fill the last word."""
    codes = np.moveaxis(codes.astype(np.uint64), axis, -1)
    each = 32 // bits
    codes = np.concatenate((codes, np.zeros((*codes.shape[:-1], -codes.shape[-1] % each), np.uint64)), axis=-1)
    words = np.zeros((*codes.shape[:-1], codes.shape[-1] // each), np.uint64)
    for place in range(each):
        words |= codes[..., place::each] << np.uint64(bits * place)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(words.astype(np.uint32).view(np.int32), -1, axis)))


def to_fp8(values: Array) -> Tensor:
    """Rounded to e4m3, clamped."""
    return torch.from_numpy(np.clip(values, -448, 448)).float().to(FP8)


def fp8_tensor(
    *, words: tuple[str, str] = ("weight_scale", "input_scale"), static: bool, shape: tuple[int, ...] = ()
) -> Encode:
    """One scale for the whole weight; the activations' beside it where it is static."""

    def encode(weight: Array, input_max: float) -> tuple[dict[str, Tensor], Array]:
        scale = np.float32(np.abs(weight).max() / 448)
        codes = to_fp8(weight / scale)
        made = {"weight": codes, words[0]: torch.tensor(scale).reshape(shape)}
        if static:
            made[words[1]] = torch.tensor(np.float32(input_max / 448)).reshape(shape)
        return made, codes.double().numpy() * scale

    return encode


def fp8_channel(weight: Array, input_max: float) -> tuple[dict[str, Tensor], Array]:
    """A bfloat16 scale a channel, as llm-compressor writes it."""
    scale = torch.from_numpy(np.abs(weight).max(1, keepdims=True) / 448).bfloat16()
    codes = to_fp8(weight / scale.double().numpy())
    return {"weight": codes, "weight_scale": scale}, codes.double().numpy() * scale.double().numpy()


def fp8_block(rows: int, columns: int, word: str) -> Encode:
    """A scale a block, ragged at the edges."""

    def encode(weight: Array, input_max: float) -> tuple[dict[str, Tensor], Array]:
        out, width = weight.shape
        scale = np.zeros((-(-out // rows), -(-width // columns)), np.float32)
        codes, meant = np.zeros_like(weight), np.zeros_like(weight)
        for r in range(scale.shape[0]):
            for c in range(scale.shape[1]):
                where = np.s_[r * rows : (r + 1) * rows, c * columns : (c + 1) * columns]
                scale[r, c] = np.abs(weight[where]).max() / 448
                codes[where] = weight[where] / scale[r, c]
                meant[where] = to_fp8(codes[where]).double().numpy() * scale[r, c]
        return {"weight": to_fp8(codes), word: torch.from_numpy(scale)}, meant

    return encode


def round_fp8(x: Tensor, scale: Tensor) -> Tensor:
    """x through e4m3 at a scale, in x's type."""
    return (x / scale).clamp(-448, 448).float().to(FP8).to(x.dtype) * scale


def row_max(x: Tensor) -> Tensor:
    """The largest magnitude of each row, 1 for zeros."""
    largest = x.abs().amax(-1, keepdim=True)
    return torch.where(largest > 0, largest, 1.0)


def fp8_token(x: Tensor) -> Tensor:
    """A scale a token."""
    return round_fp8(x, row_max(x) / 448)


def fp8_runs(columns: int) -> Rounding:
    """A scale a token and run of columns."""

    def rounding(x: Tensor) -> Tensor:
        return torch.cat([fp8_token(run) for run in x.split(columns, dim=-1)], dim=-1)

    return rounding


def fp8_static(input_max: float) -> Rounding:
    """One scale for all."""
    return lambda x: round_fp8(x, torch.tensor(np.float32(input_max / 448)).to(x.dtype))


def int8_token(x: Tensor) -> Tensor:
    """int8 with a scale a token."""
    scale = row_max(x) / 127
    return (x / scale).round().clamp(-127, 127) * scale


def compressed(weights: dict[str, Any], inputs: dict[str, Any] | None, form: str) -> dict[str, Any]:
    """A compressed-tensors configuration of one group for all linears but the head."""
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head", "re:.*mlp.gate$", "re:.*block_sparse_moe.gate$"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}},
        "kv_cache_scheme": None,
    }


def args(bits: int, kind: str, strategy: str, **more: Any) -> dict[str, Any]:
    """Arguments of weights or activations as compressed-tensors writes them."""
    return {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, "dynamic": False, **more}


FP8_TOKEN = args(8, "float", "token", dynamic=True)
FP8_FORMATS = {
    "fp8-dynamic": Format(
        config={"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["lm_head"]},
        encode=fp8_tensor(static=False),
        scheme="fp8-channel",
        rounding=lambda _: fp8_token,
    ),
    "fp8-static": Format(
        config={"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
        encode=fp8_tensor(static=True),
        scheme="fp8-static",
        rounding=fp8_static,
    ),
    "fp8-static-mistral": Format(
        config={
            "quant_method": "fp8",
            "activation_scheme": "static",
            "weight_block_size": None,
            "modules_to_not_convert": ["lm_head"],
        },
        encode=fp8_tensor(words=("weight_scale_inv", "activation_scale"), static=True),
        scheme="fp8-static",
        rounding=fp8_static,
    ),
    "fp8-block": Format(
        config={"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]},
        encode=fp8_block(128, 128, "weight_scale_inv"),
        scheme="fp8-block",
        rounding=lambda _: fp8_runs(128),
    ),
    "fp8-small-blocks": Format(
        config={"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [24, 40]},
        encode=fp8_block(24, 40, "weight_scale_inv"),
        scheme="fp8-block",
        rounding=lambda _: fp8_runs(40),
    ),
}


def int8_channel(weight: Array, input_max: float) -> tuple[dict[str, Tensor], Array]:
    """int8 with a bfloat16 scale a channel."""
    scale = torch.from_numpy(np.abs(weight).max(1, keepdims=True) / 127).bfloat16()
    codes = np.clip(np.rint(weight / scale.double().numpy()), -128, 127)
    return {"weight": torch.from_numpy(codes).to(torch.int8), "weight_scale": scale}, codes * scale.double().numpy()


def grouped(weight: Array, bits: int, size: int, zeros: bool, group: Array, dtype: torch.dtype) -> tuple[Any, ...]:
    """(codes, scale [out, groups] as a tensor, zero points, meant weight), every one by its definition."""
    count, middle = int(group.max()) + 1, 2 ** (bits - 1)
    scale, zero = torch.zeros(len(weight), count, dtype=dtype), np.full((len(weight), count), middle)
    codes, meant = np.zeros(weight.shape, np.int64), np.zeros_like(weight)
    for g in range(count):
        held = weight[:, group == g]
        if zeros:
            low, high = np.minimum(held.min(1), 0), np.maximum(held.max(1), 0)
            scale[:, g] = torch.from_numpy((high - low) / (2**bits - 1)).to(dtype)
            zero[:, g] = np.clip(np.rint(-low / scale[:, g].double().numpy()), 0, 2**bits - 1)
        else:
            scale[:, g] = torch.from_numpy(np.abs(held).max(1) / (middle - 1)).to(dtype)
        step = scale[:, g].double().numpy()[:, None]
        codes[:, group == g] = np.clip(np.rint(held / step) + zero[:, g, None], 0, 2**bits - 1)
        meant[:, group == g] = (codes[:, group == g] - zero[:, g, None]) * step
    return codes, scale, zero, meant


def groups_of(width: int, size: int, ordered: bool) -> Array:
    """Each column's group; ordered: as act-order leaves them, in no order."""
    group = np.arange(width) // (size if size > 0 else width)
    return np.random.default_rng(width).permutation(group) if ordered else group


def gptq(bits: int, size: int, *, zeros: bool = False, ordered: bool = False, v2: bool = False) -> Encode:
    """Transposed; zero points are stored less one in the first version of the format."""

    def encode(weight: Array, input_max: float) -> tuple[dict[str, Tensor], Array]:
        group = groups_of(weight.shape[1], size, ordered)
        codes, scale, zero, meant = grouped(weight, bits, size, zeros, group, torch.float16)
        stored = zero if v2 else (zero - 1) % 2**bits
        made = {
            "qweight": bits_of(codes.T, bits, 0),
            "qzeros": bits_of(stored.T, bits, 1),
            "scales": scale.T,
            "g_idx": torch.from_numpy(group).int(),
        }
        return made, meant

    return encode


def awq(size: int) -> Encode:
    """Transposed, packed along `out`, eight columns a word in AWQ's order."""

    def encode(weight: Array, input_max: float) -> tuple[dict[str, Tensor], Array]:
        group = groups_of(weight.shape[1], size, ordered=False)
        codes, scale, zero, meant = grouped(weight, 4, size, True, group, torch.float16)

        def words(columns: Array) -> Tensor:
            eights = columns.reshape(columns.shape[0], -1, 8)[:, :, list(AWQ_ORDER)]
            return bits_of(eights.reshape(columns.shape), 4, 1)

        return {"qweight": words(codes.T), "qzeros": words(zero.T), "scales": scale.T}, meant

    return encode


def packed(bits: int, size: int, *, zeros: bool = False, ordered: bool = False) -> Encode:
    """compressed-tensors' words, codes along `in` and zero points along `out`."""

    def encode(weight: Array, input_max: float) -> tuple[dict[str, Tensor], Array]:
        group = groups_of(weight.shape[1], size, ordered)
        codes, scale, zero, meant = grouped(weight, bits, size, zeros, group, torch.bfloat16)
        made = {
            "weight_packed": bits_of(codes, bits, 1),
            "weight_scale": scale,
            "weight_shape": torch.tensor(weight.shape),
        }
        if zeros:
            made["weight_zero_point"] = bits_of(zero, bits, 0)
        if ordered:
            made["weight_g_idx"] = torch.from_numpy(group).int()
        return made, meant

    return encode


def pack_config(bits: int, size: int, **more: Any) -> dict[str, Any]:
    """Of `packed`."""
    kind = args(bits, "int", "channel" if size < 0 else "group", group_size=None if size < 0 else size)
    return compressed({**kind, **more}, None, "pack-quantized")


def gptq_config(bits: int, size: int, **more: Any) -> dict[str, Any]:
    """Of `gptq`."""
    return {"quant_method": "gptq", "bits": bits, "group_size": size, "sym": True, "desc_act": False, **more}


INT8_TOKEN = args(8, "int", "token", dynamic=True)
FORMATS = {
    **FP8_FORMATS,
    "ct-fp8-channel": Format(
        config=compressed(args(8, "float", "channel"), FP8_TOKEN, "float-quantized"),
        encode=fp8_channel,
        scheme="fp8-channel",
        rounding=lambda _: fp8_token,
    ),
    "ct-fp8-static": Format(
        config=compressed(args(8, "float", "tensor"), args(8, "float", "tensor"), "float-quantized"),
        encode=fp8_tensor(static=True, shape=(1,)),
        scheme="fp8-static",
        rounding=fp8_static,
    ),
    "ct-fp8-block": Format(
        config=compressed(
            args(8, "float", "block", block_structure=[48, 32]),
            args(8, "float", "group", group_size=32, dynamic=True),
            "float-quantized",
        ),
        encode=fp8_block(48, 32, "weight_scale"),
        scheme="fp8-block",
        rounding=lambda _: fp8_runs(32),
    ),
    "ct-int8": Format(
        config=compressed(args(8, "int", "channel"), INT8_TOKEN, "int-quantized"),
        encode=int8_channel,
        scheme="int8-channel",
        rounding=lambda _: int8_token,
    ),
    "ct-w4-group32": Format(config=pack_config(4, 32), encode=packed(4, 32), scheme="int4-group32"),
    "ct-w4-zeros": Format(
        config=pack_config(4, 32, symmetric=False), encode=packed(4, 32, zeros=True), scheme="int4-group32-zeros"
    ),
    "ct-w4-ordered": Format(
        config=pack_config(4, 32, actorder="group"), encode=packed(4, 32, ordered=True), scheme="int4-group32-ordered"
    ),
    "ct-w8-channel": Format(config=pack_config(8, -1), encode=packed(8, -1), scheme="int8-group-row"),
    "gptq-w4": Format(config=gptq_config(4, 32), encode=gptq(4, 32), scheme="int4-group32"),
    "gptq-w4-row": Format(config=gptq_config(4, -1), encode=gptq(4, -1), scheme="int4-group-row"),
    "gptq-w4-ordered-zeros": Format(
        config=gptq_config(4, 32, desc_act=True, sym=False),
        encode=gptq(4, 32, zeros=True, ordered=True),
        scheme="int4-group32-zeros-ordered",
    ),
    "gptq-v2-w8": Format(
        config=gptq_config(8, 64, sym=False, checkpoint_format="gptq_v2"),
        encode=gptq(8, 64, zeros=True, v2=True),
        scheme="int8-group64-zeros",
    ),
    "awq": Format(
        config={"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
        encode=awq(32),
        scheme="int4-group32-zeros",
    ),
}
