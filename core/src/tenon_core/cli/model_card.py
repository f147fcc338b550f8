"""What a model is, as data: read from its configuration and its tensors' index. No weights, no torch, no platform."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tenon_core.config import EngineConfig
from tenon_core.loading.checkpoint import Checkpoint, open_checkpoint
from tenon_core.loading.sources import resolve_model
from tenon_core.models.family import Family, WeightNames
from tenon_core.models.groups import GroupPlan, plan_groups
from tenon_core.models.heads import choose_head
from tenon_core.models.registry import family_of
from tenon_platforms.dtypes import DType
from tenon_platforms.model import MLP, AttentionMixer, GatedMLP, Layer, ModelSpec, MoE

DEFAULT_CONTEXT = 2048
WEIGHT_FILES = "*.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """A model that was opened for reading. has_weights: its tensors' index is there, not only its configuration."""

    name: str
    path: Path
    checkpoint: Checkpoint
    family: Family
    spec: ModelSpec
    names: WeightNames
    has_weights: bool

    @property
    def dtype(self) -> DType:
        """The type the configuration names, or float32."""
        stored = self.checkpoint.config.get("dtype") or self.checkpoint.config.get("torch_dtype")
        name = str(stored or "").removeprefix("torch.")
        return DType(name) if name in DType._value2member_map_ else DType.FLOAT32


def open_card(config: EngineConfig) -> ModelCard:
    """Find a model and read what it is. Raises `ConfigError`."""
    path = resolve_model(config.model.model, revision=config.model.revision, cache_dir=config.model.download_dir)
    wants_dummies = config.model.load_format == "dummy"
    has_weights = not wants_dummies and (path.is_file() or any(path.glob(WEIGHT_FILES)) or any(path.glob("*.gguf")))
    checkpoint = open_checkpoint(path, with_tensors=has_weights)
    family = family_of(checkpoint.config)
    own_limit = int(checkpoint.config.get("max_position_embeddings") or DEFAULT_CONTEXT)
    read = checkpoint.config
    head = choose_head(
        family.spec(read, config.model.max_model_len or own_limit),
        family.names(read),
        read,
        sentence=checkpoint.sentence,
        runner=config.model.runner,
        convert=config.model.convert,
        pooling=config.model.pooling,
    )
    return ModelCard(
        name=config.model.model,
        path=path,
        checkpoint=checkpoint,
        family=family,
        spec=head.spec,
        names=head.names,
        has_weights=has_weights,
    )


def summary(card: ModelCard) -> dict[str, Any]:
    """Everything `tenon inspect` tells."""
    spec, dtype = card.spec, card.dtype
    groups = plan_groups(spec, dtype=dtype, kv_dtype=dtype)
    kinds, pattern = layer_kinds(spec.layers)
    weights = weight_totals(card)
    return {
        "model": card.name,
        "path": str(card.path),
        "format": card.checkpoint.format if card.has_weights else "configuration only",
        "family": card.family.name,
        "architecture": spec.architecture,
        "dtype": dtype.value,
        "context": spec.max_positions,
        "vocabulary": spec.vocab_size,
        "hidden": spec.hidden,
        "num_layers": len(spec.layers),
        "layers": kinds,
        "layer_pattern": pattern,
        "head": {"kind": spec.head.kind, "tied": spec.head.tied},
        "parameters": sum(item["parameters"] for item in weights),
        "bytes": sum(item["bytes"] for item in weights),
        "weights": weights,
        "groups": [_group(group) for group in groups],
        "kv_bytes_per_token": sum(_kv_bytes(group) for group in groups),
        "kv_dtype": dtype.value,
        "eos_token_ids": list(card.checkpoint.eos_token_ids),
        "chat_template": card.checkpoint.chat_template is not None,
        "fingerprint": spec.fingerprint(),
        "spec": spec.to_dict(),
    }


def layer_kinds(layers: tuple[Layer, ...]) -> tuple[list[dict[str, Any]], str]:
    """Distinct layers with their counts, most frequent kinds as they come, and the order: `AAAAAB` as `5A B`."""
    letters: dict[Layer, str] = {}
    for layer in layers:
        letters.setdefault(layer, chr(ord("A") + len(letters)) if len(letters) < 26 else f"L{len(letters)}")
    counts = Counter(layers)
    kinds = [{"kind": letter, "count": counts[layer], **layer_words(layer)} for layer, letter in letters.items()]
    runs = [(letter, len(list(run))) for letter, run in groupby(letters[layer] for layer in layers)]
    return kinds, " ".join(f"{count}{letter}" if count > 1 else letter for letter, count in runs)


def layer_words(layer: Layer) -> dict[str, str]:
    """A layer for people: mixer, feed-forward, norms."""
    norms = ["pre mixer", "pre ffn"]
    norms += [name for name, norm in (("post mixer", layer.post_mixer), ("post ffn", layer.post_ffn)) if norm]
    return {"mixer": _mixer(layer.mixer), "ffn": _ffn(layer.ffn), "norms": ", ".join(norms)}


def _mixer(mixer: AttentionMixer) -> str:
    extras = [f"window {mixer.sliding_window}"] if mixer.sliding_window else ["full"]
    if mixer.rope is not None:
        extras.append(mixer.rope.summary())
    names = {"qkv_bias": "qkv bias", "out_bias": "output bias", "qk_norm": "QK norm", "sinks": "sinks"}
    extras += [words for name, words in names.items() if getattr(mixer, name)]
    if mixer.soft_cap:
        extras.append(f"soft cap {mixer.soft_cap:g}")
    heads = f"{mixer.num_heads}/{mixer.num_kv_heads} heads x {mixer.head_dim}"
    return f"attention {heads}, {', '.join(extras)}"


def _ffn(ffn: GatedMLP | MoE | MLP) -> str:
    if isinstance(ffn, MLP):
        return f"MLP {ffn.intermediate}, {ffn.activation}"
    if isinstance(ffn, MoE):
        return f"MoE {ffn.top_k} of {ffn.num_experts} experts x {ffn.intermediate}, {ffn.activation}"
    return f"gated MLP {ffn.intermediate}, {ffn.activation}"


def weight_totals(card: ModelCard) -> list[dict[str, Any]]:
    """Parameters and bytes by scheme; of a configuration alone, those it calls for in its own type."""
    parameters: Counter[str] = Counter()
    stored: Counter[str] = Counter()
    tensors: Counter[str] = Counter()
    for scheme, elements, num_bytes in _tensors(card):
        parameters[scheme] += elements
        stored[scheme] += num_bytes
        tensors[scheme] += 1
    return [
        {"scheme": scheme, "tensors": tensors[scheme], "parameters": count, "bytes": stored[scheme]}
        for scheme, count in parameters.most_common()
    ]


def _tensors(card: ModelCard) -> Iterable[tuple[str, int, int]]:
    if not card.has_weights:
        from tenon_core.models.weights import tensor_shapes

        for _, shape in tensor_shapes(card.spec, card.names):
            elements = math.prod(shape)
            yield f"dense-{card.dtype}", elements, elements * card.dtype.num_bytes
        return
    source = card.checkpoint.tensors
    for name in source.names():
        info = source.info(name)
        yield info.scheme.id, math.prod(info.shape), info.num_bytes


def _group(group: GroupPlan) -> dict[str, Any]:
    return {
        "layers": list(group.layers),
        "window": group.spec.sliding_window,
        "num_kv_heads": group.spec.num_kv_heads,
        "head_dim": group.spec.head_dim,
        "kv_bytes_per_token": _kv_bytes(group),
    }


def _kv_bytes(group: GroupPlan) -> int:
    spec = group.spec
    return len(group.layers) * 2 * spec.num_kv_heads * spec.head_dim * spec.kv_dtype.num_bytes
