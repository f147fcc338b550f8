"""What families share: reading sizes, rope, windows and activations out of a Hugging Face configuration.

A value that would change the model and that no kernel serves is refused by name (`only`); nothing is ignored in
silence. Keys that do not change inference (dropout, initializers, caches) are not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tenon_platforms.errors import ConfigError
from tenon_platforms.model import Head, Layer, ModelSpec, MoE, NormSpec
from tenon_platforms.ops.rope import RopeScaling, RopeSpec

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
}
_WINDOWED = {"full_attention": False, "sliding_attention": True}


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


def number(config: Mapping[str, Any], key: str, default: float) -> float:
    """A finite number above zero, or the default where the key is absent or null."""
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ConfigError(f"the model's config has {key} = {value!r}: expected a number above 0")
    return float(value)


def only(config: Mapping[str, Any], key: str, *served: Any) -> None:
    """Refuse a value of `key` that is none of `served`; absent and null are always served."""
    value = config.get(key)
    if value is not None and value not in served:
        raise ConfigError(
            f"the model's config has {key} = {value!r:.200}, which architecture {architecture(config)} is not served"
            f" with here: served is {' or '.join(map(repr, served)) or 'null'}",
            remedy="use another model",
        )


def architecture(config: Mapping[str, Any]) -> str:
    """The first entry of `architectures`."""
    names = config.get("architectures") or ["(none)"]
    return str(names[0])


def served_as(prefix: str) -> tuple[str, ...]:
    """The architectures of a decoder: with its language-model head, without one, and with a classifier."""
    return tuple(
        prefix + task for task in ("ForCausalLM", "Model", "ForSequenceClassification", "ForTokenClassification")
    )


def activation(config: Mapping[str, Any], key: str = "hidden_act") -> str:
    """The activation by the contract's name."""
    name = str(config.get(key) or config.get("hidden_activation") or "silu")
    if name not in _ACTIVATIONS:
        raise ConfigError(f"activation {name!r} is not known: known are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def norm(config: Mapping[str, Any], default: float = 1e-6) -> NormSpec:
    """The RMS norm of a configuration."""
    return NormSpec(eps=number(config, "rms_norm_eps", default))


def head_dim(config: Mapping[str, Any]) -> int:
    """`head_dim`, or hidden size over heads."""
    dim = config.get("head_dim") or positive(config, "hidden_size") // positive(config, "num_attention_heads")
    if not isinstance(dim, int) or dim <= 0 or dim % 2:
        raise ConfigError(f"the model's config has heads of {dim!r} dimensions: expected an even whole number above 0")
    return dim


def heads(config: Mapping[str, Any]) -> tuple[int, int]:
    """Query heads and key-value heads."""
    query = positive(config, "num_attention_heads")
    keys = query if config.get("num_key_value_heads") is None else positive(config, "num_key_value_heads")
    if query % keys:
        raise ConfigError(
            f"the model's config has num_attention_heads = {query} and num_key_value_heads = {keys}: the first must be"
            " a multiple of the second"
        )
    return query, keys


def moe(config: Mapping[str, Any], count_key: str, width_key: str, *, renormalize: bool) -> MoE:
    """Gated MLPs of which each token goes through `num_experts_per_tok`."""
    count, used = positive(config, count_key), positive(config, "num_experts_per_tok")
    if used > count:
        raise ConfigError(f"the model's config has num_experts_per_tok = {used}, but only {count} experts")
    return MoE(
        intermediate=positive(config, width_key),
        num_experts=count,
        top_k=used,
        renormalize=renormalize,
        activation=activation(config),
    )


def max_positions(config: Mapping[str, Any], default: int) -> int:
    """The longest context the model was made for."""
    return default if config.get("max_position_embeddings") is None else positive(config, "max_position_embeddings")


def decoder(config: Mapping[str, Any], default_positions: int, layers: tuple[Layer, ...]) -> ModelSpec:
    """A language model of these layers, with the norm they have as its last one."""
    return ModelSpec(
        architecture=architecture(config),
        vocab_size=positive(config, "vocab_size"),
        hidden=positive(config, "hidden_size"),
        layers=layers,
        final_norm=layers[0].pre_mixer,
        head=Head(tied=bool(config.get("tie_word_embeddings", False))),
        max_positions=max_positions(config, default_positions),
    )


def layer_windows(config: Mapping[str, Any], window: int) -> tuple[int, ...]:
    """Each layer's sliding window, 0 where it sees everything: by `layer_types`, else by `max_window_layers`."""
    count, kinds = positive(config, "num_hidden_layers"), config.get("layer_types")
    if kinds is None:
        first = config.get("max_window_layers")
        if window and first is None:
            raise ConfigError(
                "the model's config uses a sliding window but says neither layer_types nor max_window_layers: which"
                " layers slide is unknown"
            )
        slides = (bool(window) and index >= int(first or 0) for index in range(count))
        kinds = ["sliding_attention" if one else "full_attention" for one in slides]
    return tuple(window if slides else 0 for slides in sliding_layers(kinds, count, window))


def sliding_layers(kinds: Any, count: int, window: int) -> list[bool]:
    """Which of `count` layers slide, from a `layer_types` list."""
    if not isinstance(kinds, (list, tuple)) or len(kinds) != count:
        raise ConfigError(f"the model's config has layer_types = {kinds!r:.200}: expected a list of {count} entries")
    unknown = [kind for kind in kinds if kind not in _WINDOWED]
    if unknown:
        raise ConfigError(
            f"the model's config has {unknown[0]!r:.80} in layer_types: served are {', '.join(_WINDOWED)}"
        )
    slides = [_WINDOWED[kind] for kind in kinds]
    if any(slides) and window <= 0:
        raise ConfigError("the model's config has sliding_attention in layer_types, but no sliding_window")
    return slides


def rope(
    config: Mapping[str, Any],
    dim: int,
    max_positions: int,
    *,
    base: float = 10000.0,
    kind: str | None = None,
) -> RopeSpec:
    """The rope of a configuration, in its old (`rope_theta`, `rope_scaling`) or new (`rope_parameters`) form.

    base: where the configuration names none. kind: the layer type whose parameters are wanted, where a model has
    several.
    """
    parameters = dict(config.get("rope_parameters") or {})
    nested = [key for key, value in parameters.items() if isinstance(value, Mapping)]
    if nested and kind not in nested:
        raise ConfigError(
            f"the model's config has rope_parameters for {', '.join(nested)}; architecture {architecture(config)}"
            f" wants {'one rope for all layers' if kind is None else f'those of {kind!r}'}"
        )
    if kind is not None and nested:
        parameters = dict(parameters[kind])
    scaling = {**(config.get("rope_scaling") or {}), **parameters}
    for holder in (scaling, config):
        only(holder, "partial_rotary_factor", 1, 1.0)
    return RopeSpec(
        head_dim=dim,
        rotary_dim=dim,
        base=number(parameters, "rope_theta", number(config, "rope_theta", base)),
        max_positions=max_positions,
        scaling=rope_scaling(scaling, config),
    )


def rope_scaling(scaling: Mapping[str, Any], config: Mapping[str, Any]) -> RopeScaling | None:
    """How frequencies are stretched, from a `rope_scaling` or flat `rope_parameters` table; None: not at all."""
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if kind == "default":
        return None
    if kind == "factors":
        return RopeScaling(kind="factors", factors=tuple(float(value) for value in need(scaling, "factors")))
    if kind not in ("linear", "llama3", "yarn"):
        raise ConfigError(f"rope scaling {kind!r} is not supported: supported are default, linear, llama3, yarn")
    factor = number(scaling, "factor", 0.0)
    if not factor:
        raise ConfigError(f"the model's config has rope scaling {kind!r} without a 'factor'")
    if kind == "linear":
        return RopeScaling(kind="linear", factor=factor)
    original = int(
        config.get("original_max_position_embeddings")
        or scaling.get("original_max_position_embeddings")
        or positive(config, "max_position_embeddings")
    )
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=factor,
            original_max_positions=original,
            low_freq_factor=float(need(scaling, "low_freq_factor")),
            high_freq_factor=float(need(scaling, "high_freq_factor")),
        )
    only(scaling, "truncate", True)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_positions=original,
        beta_fast=number(scaling, "beta_fast", 32.0),
        beta_slow=number(scaling, "beta_slow", 1.0),
        attention_factor=number(scaling, "attention_factor", _yarn_attention(scaling, factor)),
    )


def _yarn_attention(scaling: Mapping[str, Any], factor: float) -> float:
    """The factor on cos and sin that arXiv 2309.00071 suggests, with DeepSeek's multipliers where both are named."""

    def magnitude(multiplier: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0

    first, second = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return magnitude(float(first)) / magnitude(float(second)) if first and second else magnitude(1.0)
