"""`quant_method: compressed-tensors`, of llm-compressor: each module's kind follows from the group that targets it.

    FP8    weight float8_e4m3, weight_scale a tensor, a channel or a block; input_scale where activations are static
    INT8   weight int8, weight_scale a channel or a tensor; activations int8 a token
    packed weight_packed int32 [out, in * bits / 32], weight_shape, weight_scale [out, groups]; where they are not
           symmetric weight_zero_point int32 [out * bits / 32, groups]; with act-order weight_g_idx int32 [in]

A target is a module's name, an expression ("re:..."), or the class "Linear". Source: the compressed-tensors library's
description of its formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tenon_platforms.errors import ConfigError

from .config import EXPRESSION
from .float8 import float8_module
from .fp8 import block_size
from .integers import int8_module, packed_module
from .module import ModuleTensors, QuantizedModule, unsupported, whole

CLASS = "Linear"  # what every module that has a weight [out, in] is; tables of embeddings are not quantized
MARKS = ("weight_packed", "weight_scale")
FORMATS = ("float-quantized", "int-quantized", "pack-quantized", "naive-quantized", "mixed-precision", "dense")
Read = Callable[[ModuleTensors], QuantizedModule | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Modules that are quantized alike. name: for messages."""

    name: str
    targets: tuple[str, ...]
    read: Read


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedTensors:
    """A `Method`."""

    groups: tuple[Group, ...]
    ignore: tuple[str, ...]

    def module(self, tensors: ModuleTensors) -> QuantizedModule | None:
        """The weight of a module that has a scale, as its group says."""
        if not any(map(tensors.has, MARKS)):
            return None
        group = None if _matches(tensors.name, self.ignore) else self._group_of(tensors.name)
        if group is None:
            raise ConfigError(
                f"the checkpoint has {tensors.full('weight_scale')!r}, but its quantization_config targets no such"
                " module",
                remedy="download the checkpoint again: its configuration is another model's",
            )
        return group.read(tensors)

    def _group_of(self, name: str) -> Group | None:
        """A name or an expression comes before the class."""
        for group in self.groups:
            if _matches(name, tuple(target for target in group.targets if target != CLASS)):
                return group
        return next((group for group in self.groups if CLASS in group.targets), None)


def _matches(name: str, targets: tuple[str, ...]) -> bool:
    return any(
        re.match(target.removeprefix(EXPRESSION), name) is not None if target.startswith(EXPRESSION) else target == name
        for target in targets
    )


def read(config: Mapping[str, Any]) -> CompressedTensors:
    """The method that a configuration describes; raises `ConfigError`."""
    if config.get("sparsity_config") and config["sparsity_config"].get("format", "dense") != "dense":
        raise unsupported(f"the sparsity {config['sparsity_config'].get('format')!r:.80}", "dense weights")
    if config.get("transform_config"):
        raise unsupported("transforms (transform_config)", "checkpoints without them")
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise ConfigError("quantization_config has no config_groups of modules that are quantized alike")
    return CompressedTensors(
        groups=tuple(
            Group(name=str(name), targets=_names(group, "targets"), read=_reader(group, config))
            for name, group in groups.items()
        ),
        ignore=_names(config, "ignore"),
    )


def _names(holder: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = holder.get(key) or []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ConfigError(f"quantization_config has {key} = {found!r:.80}: expected a list of names")
    return tuple(found)


def _reader(group: Mapping[str, Any], config: Mapping[str, Any]) -> Read:
    form = group.get("format") or config.get("format")
    if form is not None and form not in FORMATS:
        raise unsupported(f"the format {form!r:.80}", ", ".join(FORMATS))
    weights, inputs = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, dict) or not isinstance(inputs, (dict, type(None))):
        raise ConfigError("quantization_config has a group without weights")
    kind, strategy = weights.get("type", "int"), weights.get("strategy")
    if kind == "float":
        return _float_reader(weights, inputs, strategy)
    if kind != "int":
        raise unsupported(f"weights of the type {kind!r:.80}", "float, int")
    bits = whole(weights, "num_bits", (4, 8))
    symmetric = weights.get("symmetric", True) is not False
    if inputs is None:
        if strategy not in ("group", "channel"):
            raise unsupported(f"integer weights with a scale a {strategy!r:.80}", "group, channel")
        size = whole(weights, "group_size") if strategy == "group" else 0
        return lambda tensors: packed_module(tensors, bits=bits, group_size=size, zeros=not symmetric)
    dynamic = inputs.get("dynamic") is True and inputs.get("strategy") in ("token", "tensor")
    if bits != 8 or inputs.get("num_bits") != 8 or inputs.get("type", "int") != "int" or not symmetric:
        raise unsupported("integer weights with quantized activations of this kind", "W8A8, symmetric")
    if not dynamic or inputs.get("symmetric", True) is False or strategy not in ("channel", "tensor"):
        raise unsupported(
            f"W8A8 with {strategy!r:.80} weights and activations {_words(inputs)}",
            "channel or tensor weights, symmetric dynamic activations",
        )
    return int8_module


def _float_reader(weights: Mapping[str, Any], inputs: Mapping[str, Any] | None, strategy: Any) -> Read:
    if weights.get("num_bits") != 8:
        raise unsupported(f"float weights of {weights.get('num_bits')!r:.80} bits", "8")
    if inputs is None or inputs.get("num_bits") != 8 or inputs.get("type") != "float":
        raise unsupported("FP8 weights whose activations are not FP8", "FP8 weights with FP8 activations")
    dynamic = inputs.get("dynamic")
    if not isinstance(dynamic, bool):
        raise unsupported(f"activations with dynamic = {dynamic!r:.80}", "true, false")
    if strategy in ("tensor", "channel"):
        return lambda tensors: float8_module(tensors, static=not dynamic)
    if strategy != "block" or not dynamic:
        raise unsupported(f"FP8 weights a {strategy!r:.80} with activations {_words(inputs)}", "tensor, channel, block")
    block = block_size(weights.get("block_structure"))
    return lambda tensors: float8_module(tensors, block=block)


def _words(inputs: Mapping[str, Any]) -> str:
    names = ("strategy", "dynamic", "symmetric")
    return ", ".join(f"{name} {inputs[name]!r:.80}" for name in names if name in inputs)
