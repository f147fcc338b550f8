"""What comes of a model's hidden states: a language model's logits, a pooled vector, or labels. Torch-free.

A family knows the layers; which head stands on them follows from the architecture's name, from the
sentence-transformers files beside the weights, and from the operator (`--runner`, `--convert`, `--pooling`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tenon_platforms.errors import ConfigError
from tenon_platforms.model import Head, HeadLayer, ModelSpec

from .family import WeightNames

POOLINGS = ("last", "mean", "first", "all")
MAX_LABELS = 65_536
_PROBLEMS = {
    "regression": "identity",
    "multi_label_classification": "sigmoid",
    "single_label_classification": "softmax",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseModule:
    """A `Dense` module of a sentence-transformers model. folder: where it lies, which is also its tensors' name."""

    folder: str
    in_features: int
    out_features: int
    bias: bool
    activation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceLayout:
    """What a sentence-transformers folder says beside the model. max_length: where texts are cut; None: nowhere."""

    pooling: str
    normalize: bool
    dense: tuple[DenseModule, ...] = ()
    max_length: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadChoice:
    """A model with its head. normalize: whether vectors are normalized unless asked otherwise.

    activation: what labels' scores go through: "softmax", "sigmoid" or "identity". labels: their names in order.
    dimensions: the only lengths vectors may be cut to; empty: any.
    """

    spec: ModelSpec
    names: WeightNames
    normalize: bool = True
    activation: str = "identity"
    labels: tuple[str, ...] = ()
    dimensions: tuple[int, ...] = ()


def choose_head(
    spec: ModelSpec,
    names: WeightNames,
    config: Mapping[str, Any],
    *,
    sentence: SentenceLayout | None = None,
    runner: str = "auto",
    convert: str = "auto",
    pooling: str = "auto",
) -> HeadChoice:
    """The model with the head it is served with. Raises `ConfigError` for what the checkpoint cannot be."""
    architecture = spec.architecture
    is_generator = spec.head.kind == "language_model" and spec.causal
    if architecture.endswith(("ForSequenceClassification", "ForTokenClassification")):
        _refuse_generation(runner, architecture)
        if convert == "embed":
            raise ConfigError(
                f"architecture {architecture} classifies: --convert embed is for models without a head of their own",
                remedy="leave out --convert",
            )
        return _classifier(spec, names, config, pooling)
    wants_pooling = runner == "pooling" or convert == "embed" or (runner == "auto" and sentence is not None)
    if architecture.endswith("ForCausalLM") and is_generator and (not wants_pooling or convert == "none"):
        if runner == "pooling":
            raise ConfigError(
                f"architecture {architecture} generates: --runner pooling needs --convert embed",
                remedy="leave out --convert none",
            )
        return HeadChoice(spec=spec, names=names)
    if spec.head.kind == "language_model" and architecture.endswith("ForCausalLM"):
        pass  # a generator, served without its head
    else:
        _refuse_generation(runner, architecture)
    return _embedder(spec, names, config, sentence, pooling)


def _refuse_generation(runner: str, architecture: str) -> None:
    if runner == "generate":
        raise ConfigError(
            f"architecture {architecture} has no language-model head: it cannot generate",
            remedy="leave out --runner generate: it is served for embeddings, scores or labels",
        )


def _embedder(
    spec: ModelSpec, names: WeightNames, config: Mapping[str, Any], sentence: SentenceLayout | None, pooling: str
) -> HeadChoice:
    chosen = pooling
    if chosen == "auto":
        default = "last" if spec.causal else "first"
        chosen = default if sentence is None else sentence.pooling
    dense = () if sentence is None else sentence.dense
    width = spec.hidden
    for module in dense:
        if module.in_features != width:
            raise ConfigError(f"{module.folder} takes {module.in_features} features, what comes to it has {width}")
        width = module.out_features
    layers = tuple(HeadLayer(out_features=one.out_features, bias=one.bias, activation=one.activation) for one in dense)
    sizes = config.get("matryoshka_dimensions")
    known = isinstance(sizes, list) and all(type(one) is int and 0 < one <= width for one in sizes)
    return HeadChoice(
        spec=dataclasses.replace(spec, head=Head(kind="pool", pooling=chosen, layers=layers)),
        names=dataclasses.replace(names, head_layers=tuple(f"{one.folder}.linear" for one in dense)),
        normalize=True if sentence is None else sentence.normalize,
        dimensions=tuple(sizes) if known and sizes else (),
    )


def _classifier(spec: ModelSpec, names: WeightNames, config: Mapping[str, Any], pooling: str) -> HeadChoice:
    labels = label_names(config)
    head, layers = spec.head, names.head_layers
    if head.kind != "classify":  # a decoder's: one layer on its last token, or on each
        is_token = spec.architecture.endswith("ForTokenClassification")
        head = Head(
            kind="classify",
            pooling="all" if is_token else "last",
            num_labels=len(labels),
            layers=(HeadLayer(out_features=len(labels), bias=is_token),),
        )
        layers = ("score",)
    if pooling != "auto":
        head = dataclasses.replace(head, pooling=pooling)
    return HeadChoice(
        spec=dataclasses.replace(spec, head=head),
        names=dataclasses.replace(names, head_layers=layers),
        normalize=False,
        activation=label_activation(config, len(labels)),
        labels=labels,
    )


def label_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The labels of a configuration in order; two where it names none, as in Transformers."""
    named = config.get("id2label")
    count = len(named) if isinstance(named, dict) and named else config.get("num_labels", 2)
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= MAX_LABELS:
        raise ConfigError(f"the model's config has num_labels = {count!r:.80}: expected 1 to {MAX_LABELS}")
    found = named if isinstance(named, dict) else {}
    return tuple(str(found.get(str(index), found.get(index, f"LABEL_{index}")))[:256] for index in range(count))


def label_activation(config: Mapping[str, Any], count: int) -> str:
    """What turns logits into scores: the cross-encoder's own function, the problem's, or by the number of labels."""
    holder = config.get("sentence_transformers")
    own = holder.get("activation_fn") if isinstance(holder, dict) else None
    own = own or config.get("sbert_ce_default_activation_function")
    if own is not None:
        name = str(own).rpartition(".")[2].lower()
        if name not in ("identity", "sigmoid", "softmax"):
            raise ConfigError(f"the model's config has the activation {own!r:.80}: known are Identity and Sigmoid")
        return name
    problem = config.get("problem_type")
    if problem in _PROBLEMS and not (problem == "single_label_classification" and count == 1):
        return _PROBLEMS[problem]
    return "sigmoid" if count == 1 else "softmax"
