"""What a GGUF's metadata says of a model where no whole file is needed to tell: Gemma 3's defaults, rope scaling."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tenon_core.loading.gguf_config import hf_config
from tenon_core.loading.gguf_file import GGUFFile, GGUFTensor
from tenon_platforms.errors import ConfigError

pytestmark = pytest.mark.unit
BASE = {
    "block_count": 2,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "context_length": 128,
}


def index(architecture: str, **changes: Any) -> GGUFFile:
    """An index without a file. changes: keys with `__` for a dot."""
    keys = BASE | {key.replace("__", "."): value for key, value in changes.items()}
    layers = range(int(keys["block_count"]))
    tensors = {
        name: GGUFTensor(name=name, type_name="Q8_0", shape=shape, offset=0, num_bytes=0)
        for name, shape in {
            "token_embd.weight": (8, 64),
            **{f"blk.{layer}.attn_norm.weight": (64,) for layer in layers},
        }.items()
    }
    metadata = {"general.architecture": architecture} | {f"{architecture}.{key}": value for key, value in keys.items()}
    return cast(GGUFFile, SimpleNamespace(path=Path("m.gguf"), metadata=metadata, tensors=tensors))


def test_gemma3_leaves_much_to_defaults() -> None:
    config = hf_config(index("gemma3", block_count=7, attention__key_length=32, attention__sliding_window=16))
    assert config["layer_types"] == ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (1_000_000.0, 10_000.0)
    assert config["query_pre_attn_scalar"] == 32 and config["tie_word_embeddings"]
    named = {"attention__key_length": 32, "attention__sliding_window": 16}
    config = hf_config(index("gemma3", block_count=4, attention__sliding_window_pattern=2, **named))
    assert config["layer_types"] == ["sliding_attention", "full_attention"] * 2
    config = hf_config(index("gemma3", rope__freq_base=5e5, rope__freq_base_swa=2e4, **named))
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (5e5, 2e4)


def test_gemma3_of_62_layers_scales_queries_by_hidden_over_heads() -> None:
    keys = {"attention__head_count": 2, "attention__key_length": 16, "attention__sliding_window": 16}
    assert hf_config(index("gemma3", block_count=62, **keys))["query_pre_attn_scalar"] == 32
    assert hf_config(index("gemma3", block_count=61, **keys))["query_pre_attn_scalar"] == 16


def test_a_pattern_of_another_length_is_refused() -> None:
    keys = {"attention__key_length": 32, "attention__sliding_window": 16}
    with pytest.raises(ConfigError, match="sliding_window_pattern has 3 entries for 2 layers"):
        hf_config(index("gemma3", attention__sliding_window_pattern=[True, True, False], **keys))


def test_rope_scaling() -> None:
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 32}
    assert hf_config(index("qwen2", **yarn))["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    scaled = hf_config(index("qwen2", **yarn, rope__scaling__attn_factor=2.0))["rope_scaling"]
    assert scaled["attention_factor"] == pytest.approx(2 * 1.1386294)
    assert hf_config(index("llama", rope__scale_linear=2.0))["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    assert "rope_scaling" not in hf_config(index("llama", rope__scaling__type="none"))
    assert hf_config(index("llama"), (1.0, 2.0))["rope_scaling"] == {"rope_type": "factors", "factors": [1.0, 2.0]}
    with pytest.raises(ConfigError, match="has both"):
        hf_config(index("llama", **yarn), (1.0, 2.0))
