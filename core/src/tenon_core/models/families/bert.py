"""BERT, RoBERTa and XLM-RoBERTa: encoders whose tokens see the whole text. Norms after the addition, learned positions.

What stands on top: nothing (embeddings), the pooler and a classifier, or a classifier on each token. Sources: Devlin et
al. 2018 (arXiv 1810.04805), Liu et al. 2019 (arXiv 1907.11692), Conneau et al. 2019 (arXiv 1911.02116).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tenon_platforms.errors import ConfigError
from tenon_platforms.model import (
    MLP,
    AttentionMixer,
    Head,
    HeadLayer,
    Layer,
    LearnedPositions,
    ModelSpec,
    NormSpec,
)

from ..family import Family, WeightNames
from ..heads import label_names
from . import common

BERT, ROBERTA, XLM_ROBERTA = "Bert", "Roberta", "XLMRoberta"
TASKS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
_PREFIXES = ("bert.", "roberta.")


def spec(config: Mapping[str, Any], max_positions: int) -> ModelSpec:
    """The `ModelSpec` of a BERT-like configuration."""
    common.only(config, "position_embedding_type", "absolute")
    common.only(config, "is_decoder", False)
    common.only(config, "add_cross_attention", False)
    hidden, heads = common.positive(config, "hidden_size"), common.positive(config, "num_attention_heads")
    if hidden % heads:
        raise ConfigError(f"the model's config has hidden_size = {hidden}, no multiple of its {heads} heads")
    norm = NormSpec(eps=common.number(config, "layer_norm_eps", 1e-12), kind="layer")
    layer = Layer(
        mixer=AttentionMixer(
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=hidden // heads,
            scale=(hidden // heads) ** -0.5,
            qkv_bias=True,
            out_bias=True,
        ),
        ffn=MLP(
            intermediate=common.positive(config, "intermediate_size"),
            activation=common.activation({"hidden_act": "gelu", **config}),
            bias=True,
        ),
        pre_mixer=norm,
        pre_ffn=norm,
    )
    types = common.positive({"type_vocab_size": 2, **config}, "type_vocab_size")
    return ModelSpec(
        architecture=common.architecture(config),
        vocab_size=common.positive(config, "vocab_size"),
        hidden=hidden,
        layers=(layer,) * common.positive(config, "num_hidden_layers"),
        final_norm=norm,
        head=head(config, hidden),
        max_positions=context(config),
        causal=False,
        position_axes=2 if types > 1 else 1,
        post_norm=True,
        learned_positions=LearnedPositions(
            count=common.positive(config, "max_position_embeddings"), offset=position_offset(config)
        ),
        token_types=types,
    )


def position_offset(config: Mapping[str, Any]) -> int:
    """Which row of the table the first token has: RoBERTa counts from the padding token's number on."""
    if common.architecture(config).startswith(BERT):
        return 0
    padding = config.get("pad_token_id", 1)
    if isinstance(padding, bool) or not isinstance(padding, int) or padding < 0:
        raise ConfigError(f"the model's config has pad_token_id = {padding!r:.80}: expected a token's number")
    return padding + 1


def context(config: Mapping[str, Any]) -> int:
    """The longest text in tokens."""
    rows = common.positive(config, "max_position_embeddings")
    longest = rows - position_offset(config)
    if longest < 1:
        raise ConfigError(f"the model's config has {rows} positions, which leave none after the padding's")
    return longest


def head(config: Mapping[str, Any], hidden: int) -> Head:
    """The head that the architecture names; that of a plain model is chosen later."""
    name = common.architecture(config)
    if name.endswith("ForSequenceClassification"):
        count = len(label_names(config))
        layers = (HeadLayer(out_features=hidden, activation="tanh"), HeadLayer(out_features=count))
        return Head(kind="classify", pooling="first", num_labels=count, layers=layers)
    if name.endswith("ForTokenClassification"):
        count = len(label_names(config))
        return Head(kind="classify", pooling="all", num_labels=count, layers=(HeadLayer(out_features=count),))
    return Head(kind="pool", pooling="first")


def stored_as(name: str) -> str:
    """Names without the model's own prefix, and norms as Transformers has named them since 2019."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def classifier_names(architecture: str) -> tuple[str, ...]:
    """The head's modules in order."""
    if architecture.endswith("ForTokenClassification"):
        return ("classifier",)
    if not architecture.endswith("ForSequenceClassification"):
        return ()
    return (
        ("pooler.dense", "classifier")
        if architecture.startswith(BERT)
        else (
            "classifier.dense",
            "classifier.out_proj",
        )
    )


_LAYER = "encoder.layer.{i}"
WEIGHTS = WeightNames(
    embedding="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    token_types="embeddings.token_type_embeddings",
    first_norm="embeddings.LayerNorm",
    q=f"{_LAYER}.attention.self.query",
    k=f"{_LAYER}.attention.self.key",
    v=f"{_LAYER}.attention.self.value",
    out=f"{_LAYER}.attention.output.dense",
    pre_ffn=f"{_LAYER}.attention.output.LayerNorm",
    mlp_up=f"{_LAYER}.intermediate.dense",
    mlp_down=f"{_LAYER}.output.dense",
    pre_mixer="encoder.layer.{p}.output.LayerNorm",
    final_norm="encoder.layer.{p}.output.LayerNorm",
)


def names(config: Mapping[str, Any]) -> WeightNames:
    """The names of one checkpoint: the head's differ by what it does."""
    return dataclasses.replace(WEIGHTS, head_layers=classifier_names(common.architecture(config)))


FAMILY = Family(
    name="bert",
    architectures=tuple(prefix + task for prefix in (BERT, ROBERTA, XLM_ROBERTA) for task in TASKS),
    spec=spec,
    weights=WEIGHTS,
    rename=stored_as,
    context=context,
    names_of=names,
)
