"""Tiny encoders, embedders and classifiers, made and saved by Transformers, with the arithmetic they are compared with.

Nothing here knows our engine. A sentence-transformers layout is written as that library writes it; its arithmetic
(pooling over the mask, dense layer, normalization) is done here in plain torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIZES = {
    "vocab_size": 270,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 130,
    "initializer_range": 0.2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
DECODER = {
    "vocab_size": 270,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
ROBERTA = {"type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
LABELS = {str(index): f"label {index}" for index in range(5)}

# name -> (Transformers class, configuration class, what differs, folders of a sentence-transformers layout)
TINY: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    "minilm": ("BertModel", "BertConfig", SIZES, ("mean", "Normalize")),
    "bert-dense": ("BertModel", "BertConfig", SIZES, ("cls", "Dense")),
    "bert-bare": ("BertModel", "BertConfig", SIZES, ()),
    "xlm-roberta": ("XLMRobertaModel", "XLMRobertaConfig", {**SIZES, **ROBERTA}, ("cls", "Normalize")),
    "qwen3-embedding": ("Qwen3Model", "Qwen3Config", DECODER, ("lasttoken", "Normalize")),
    "llama-mean": ("LlamaModel", "LlamaConfig", DECODER, ("mean",)),
    "bert-labels": ("BertForSequenceClassification", "BertConfig", {**SIZES, "id2label": LABELS}, ()),
    "bert-cross": ("BertForSequenceClassification", "BertConfig", {**SIZES, "num_labels": 1}, ()),
    "xlm-cross": (
        "XLMRobertaForSequenceClassification",
        "XLMRobertaConfig",
        {**SIZES, **ROBERTA, "num_labels": 1},
        (),
    ),
    "bert-tokens": ("BertForTokenClassification", "BertConfig", {**SIZES, "id2label": LABELS}, ()),
    "qwen3-labels": (
        "Qwen3ForSequenceClassification",
        "Qwen3Config",
        {**DECODER, "num_labels": 3, "pad_token_id": 0},
        (),
    ),
}
FLAGS = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "lasttoken": "pooling_mode_lasttoken",
}
DENSE_OUT = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyPooling:
    """A saved checkpoint. expect(ids, segment_start) gives what the library's arithmetic makes of one prompt."""

    name: str
    path: Path
    model: Any
    expect: Callable[..., Any]


def make_pooling(name: str, folder: Path, *, seed: int = 0, tokenizer: str | None = None) -> TinyPooling:
    """Make and save one of `TINY` under `folder`. tokenizer: a tokenizer.json to lay beside it."""
    import torch
    import transformers

    kind, config_kind, values, modules = TINY[name]
    torch.manual_seed(seed)
    model = getattr(transformers, kind)(getattr(transformers, config_kind)(**values)).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    path = folder / name
    model.save_pretrained(path)
    if tokenizer is not None:
        (path / "tokenizer.json").write_text(tokenizer)
    dense = torch.nn.Linear(values["hidden_size"], DENSE_OUT)
    if modules:
        _write_layout(path, modules, values["hidden_size"], dense)

    def expect(ids: list[int], segment_start: int = 0) -> Any:
        given: dict[str, Any] = {"input_ids": torch.tensor([ids])}
        if segment_start:
            given["token_type_ids"] = torch.tensor([[int(place >= segment_start) for place in range(len(ids))]])
        with torch.no_grad():
            output = model(**given)
            if kind.endswith("Classification"):
                return output.logits[0]
            states = output.last_hidden_state[0]
            pooling = modules[0] if modules else "cls"
            vector = {"mean": states.mean(0), "cls": states[0], "lasttoken": states[-1]}[pooling]
            if "Dense" in modules:
                vector = torch.tanh(dense(vector))
            if "Normalize" in modules:
                vector = torch.nn.functional.normalize(vector, dim=-1)
        return vector

    return TinyPooling(name=name, path=path, model=model, expect=expect)


def _write_layout(path: Path, modules: tuple[str, ...], hidden: int, dense: Any) -> None:
    from safetensors.torch import save_file

    prefix = "sentence_transformers.models"
    listed = [{"idx": 0, "name": "0", "path": "", "type": f"{prefix}.Transformer"}]
    for place, module in enumerate(("Pooling", *modules[1:]), start=1):
        folder = path / f"{place}_{module}"
        folder.mkdir()
        listed.append({"idx": place, "name": str(place), "path": folder.name, "type": f"{prefix}.{module}"})
        if module == "Pooling":
            flags = {flag: key == modules[0] for key, flag in FLAGS.items()}
            (folder / "config.json").write_text(json.dumps({"word_embedding_dimension": hidden, **flags}))
        if module == "Dense":
            settings = {
                "in_features": hidden,
                "out_features": DENSE_OUT,
                "bias": True,
                "activation_function": "torch.nn.modules.activation.Tanh",
            }
            (folder / "config.json").write_text(json.dumps(settings))
            tensors = {f"linear.{name}": value.detach().contiguous() for name, value in dense.named_parameters()}
            save_file(tensors, folder / "model.safetensors")
    (path / "modules.json").write_text(json.dumps(listed))


def encoder_tokenizer() -> str:
    """A byte-level tokenizer.json that frames texts and pairs as BERT's does: [CLS] a [SEP] b [SEP], types 0 and 1."""
    from byte_vocabulary import tokenizer_json
    from tokenizers import AddedToken, Tokenizer, processors

    tokenizer = Tokenizer.from_str(tokenizer_json())
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("[CLS]", "[SEP]")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 256), ("[SEP]", 257)],
    )
    text: str = tokenizer.to_str()
    return text
