"""What families share: reading rope, head sizes and activations out of a Hugging Face configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tenon_platforms.errors import ConfigError
from tenon_platforms.ops.rope import RopeScaling, RopeSpec

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
}


def need(config: Mapping[str, Any], key: str) -> Any:
    """`config[key]`, or a `ConfigError` that names the key."""
    value = config.get(key)
    if value is None:
        raise ConfigError(f"the model's config has no {key!r}, which architecture {architecture(config)} needs")
    return value


def positive(config: Mapping[str, Any], key: str) -> int:
    """A whole number above zero."""
    value = need(config, key)
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ConfigError(f"the model's config has {key} = {value!r}: expected a whole number above 0")
    return value


def architecture(config: Mapping[str, Any]) -> str:
    """The first entry of `architectures`."""
    names = config.get("architectures") or ["(none)"]
    return str(names[0])


def activation(config: Mapping[str, Any], key: str = "hidden_act") -> str:
    """The activation by the contract's name."""
    name = str(config.get(key) or config.get("hidden_activation") or "silu")
    if name not in _ACTIVATIONS:
        raise ConfigError(f"activation {name!r} is not known: known are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def head_dim(config: Mapping[str, Any]) -> int:
    """`head_dim`, or hidden size over heads."""
    return int(config.get("head_dim") or positive(config, "hidden_size") // positive(config, "num_attention_heads"))


def rope(config: Mapping[str, Any], dim: int, max_positions: int, *, kind: str | None = None) -> RopeSpec:
    """The rope of a configuration, in its old (`rope_theta`, `rope_scaling`) or new (`rope_parameters`) form.

    kind: the layer type whose parameters are wanted, where a model has several.
    """
    parameters = dict(config.get("rope_parameters") or {})
    if kind is not None and isinstance(parameters.get(kind), Mapping):
        parameters = dict(parameters[kind])
    scaling = {**(config.get("rope_scaling") or {}), **parameters}
    base = float(parameters.get("rope_theta") or config.get("rope_theta") or 10000.0)
    rotary = int(dim * float(scaling.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0))
    return RopeSpec(
        head_dim=dim,
        rotary_dim=rotary,
        base=base,
        max_positions=max_positions,
        scaling=_scaling(scaling, config),
    )


def _scaling(scaling: Mapping[str, Any], config: Mapping[str, Any]) -> RopeScaling | None:
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    original = int(scaling.get("original_max_position_embeddings") or config.get("max_position_embeddings") or 0)
    if kind == "default":
        return None
    if kind == "factors":
        return RopeScaling(kind="factors", factors=tuple(float(value) for value in scaling["factors"]))
    factor = float(scaling.get("factor") or 1.0)
    if kind == "linear":
        return RopeScaling(kind="linear", factor=factor)
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=factor,
            original_max_positions=original,
            low_freq_factor=float(scaling["low_freq_factor"]),
            high_freq_factor=float(scaling["high_freq_factor"]),
        )
    if kind == "yarn":
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_max_positions=original,
            beta_fast=float(scaling.get("beta_fast") or 32.0),
            beta_slow=float(scaling.get("beta_slow") or 1.0),
            attention_factor=float(scaling.get("attention_factor") or 0.1 * math.log(factor) + 1.0),
        )
    raise ConfigError(f"rope scaling {kind!r} is not supported: supported are default, linear, llama3, yarn")
