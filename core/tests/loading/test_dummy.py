"""Dummy weights: like a real model's, made where they are wanted, the same for the same seed and name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tenon_core.models.families.qwen3 import FAMILY
from tenon_core.models.weights import DummySource
from tenon_platforms.dtypes import DType

pytestmark = pytest.mark.unit
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}


def source(**fields: Any) -> DummySource:
    spec = FAMILY.spec(CONFIG, 128)
    return DummySource.for_model(spec, FAMILY.weights, **{"dtype": DType.BFLOAT16, **fields})


def test_weights_are_spread_like_a_models_and_norms_are_ones() -> None:
    made = source()
    for name in made.names():
        weight = made.tensors(name)["weight"]
        assert weight.dtype == torch.bfloat16
        assert tuple(weight.shape) == made.shape(name)
        if "norm" in name:
            assert (weight == 1).all()
        else:
            assert abs(float(weight.float().std()) - 0.02) < 0.002


def test_seed_and_name_decide_the_values() -> None:
    names = [name for name in source().names() if "norm" not in name][:3]
    first = [source().tensors(name)["weight"] for name in names]
    assert all(torch.equal(a, source().tensors(name)["weight"]) for a, name in zip(first, names, strict=True))
    assert not torch.equal(first[0], source(seed=1).tensors(names[0])["weight"])
    assert not torch.equal(first[1].flatten()[:64], first[2].flatten()[:64])


def test_they_are_made_on_the_device_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[Any] = []
    empty = torch.empty

    def watched(*arguments: Any, **named: Any) -> Any:
        devices.append(named.get("device"))
        return empty(*arguments, **named)

    monkeypatch.setattr(torch, "empty", watched)
    device = torch.device("cpu", 0)
    source(torch_device=device).tensors("model.embed_tokens.weight")
    assert devices == [device]
