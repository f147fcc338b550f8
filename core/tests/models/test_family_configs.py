"""Families read configurations as the hub has them and as Transformers 5 writes them, and refuse what they cannot."""

from __future__ import annotations

from typing import Any

import pytest

from tenon_core.models.registry import families, family_of
from tenon_platforms.errors import ConfigError
from tenon_platforms.model import GatedMLP, ModelSpec, MoE

pytestmark = pytest.mark.unit
BASE: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}
SPECIFIC: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "MistralForCausalLM": {"sliding_window": None},
    "Qwen2ForCausalLM": {},
    "Qwen3ForCausalLM": {"head_dim": 32},
    "Qwen3MoeForCausalLM": {
        "head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
    },
    "MixtralForCausalLM": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Gemma3ForCausalLM": {"head_dim": 32, "sliding_window": 16},
}
LLAMA, MISTRAL, QWEN2, QWEN3, QWEN3_MOE, MIXTRAL, GEMMA = SPECIFIC


def spec(architecture: str, **changes: Any) -> ModelSpec:
    config = {**BASE, **SPECIFIC[architecture], "architectures": [architecture], **changes}
    config = {key: value for key, value in config.items() if value != "absent"}
    return family_of(config).spec(config, 512)


def windows(model: ModelSpec) -> list[int]:
    return [layer.mixer.sliding_window for layer in model.layers]


def test_every_family_is_registered_under_its_own_name() -> None:
    found = families()
    assert {"llama", "qwen2", "qwen3", "qwen3_moe", "gemma3", "mixtral"} <= set(found)
    assert all(family.name == name for name, family in found.items())
    assert set(SPECIFIC) <= {name for family in found.values() for name in family.architectures}


@pytest.mark.parametrize("architecture", SPECIFIC)
def test_specs_are_hashable_data(architecture: str) -> None:
    model = spec(architecture)
    assert hash(model) == hash(spec(architecture)) and model.fingerprint() == spec(architecture).fingerprint()
    assert model.architecture == architecture and len(model.layers) == 4 and model.final_norm.eps == 1e-5


@pytest.mark.parametrize("architecture", [name for name in SPECIFIC if name != GEMMA])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"rope_theta": 5000.0}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}),
        (
            {"rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}},
        ),
        (
            {
                "rope_theta": 5e5,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 128,
                },
            },
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 5e5,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 128,
                }
            },
        ),
        (
            {
                "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
                "rope_theta": 1e6,
            },
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 128,
                    "rope_theta": 1e6,
                }
            },
        ),
        ({"rope_scaling": None, "rope_theta": 1e4}, {"rope_parameters": {"rope_theta": 1e4}}),
    ],
)
def test_old_and_new_rope_mean_the_same(architecture: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    assert spec(architecture, **old) == spec(architecture, **new)
    assert spec(architecture, **old).layers[0].mixer.rope.base == old["rope_theta"]


def test_gemmas_two_ropes_in_both_forms() -> None:
    old = spec(
        GEMMA,
        rope_theta=2e6,
        rope_local_base_freq=3e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        sliding_window_pattern=2,
    )
    new = spec(
        GEMMA,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
        },
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
    assert old == new
    assert windows(old) == [16, 0, 16, 0]
    local, full = (old.layers[i].mixer.rope for i in (0, 1))
    assert (local.base, local.scaling) == (3e4, None) and full.base == 2e6 and full.scaling.factor == 8.0
    plain = spec(GEMMA, num_hidden_layers=7)
    assert windows(plain) == [16] * 5 + [0, 16]
    assert [plain.layers[i].mixer.rope.base for i in (0, 5)] == [1e4, 1e6]


def test_gemma_is_gemma() -> None:
    model = spec(GEMMA, query_pre_attn_scalar=64, final_logit_softcapping=30.0)
    layer = model.layers[0]
    assert model.head.tied and model.head.soft_cap == 30.0 and model.embedding_scale == 8.0
    assert layer.mixer.scale == 0.125 and layer.mixer.qk_norm.weight_offset == 1.0
    assert layer.post_mixer is not None and layer.post_ffn is not None and layer.pre_ffn.weight_offset == 1.0
    assert layer.ffn.activation == "gelu_tanh"
    assert spec(GEMMA, hidden_activation="gelu_pytorch_tanh") == spec(GEMMA)
    assert not spec(GEMMA, tie_word_embeddings=False).head.tied


def test_sliding_windows() -> None:
    assert windows(spec(MISTRAL)) == [0] * 4
    assert windows(spec(MISTRAL, sliding_window=7)) == [7] * 4
    assert windows(spec(MISTRAL, sliding_window="absent")) == [4096] * 4
    assert windows(spec(LLAMA, sliding_window=7)) == [0] * 4  # Llama has none, whatever its configuration says
    assert windows(spec(MIXTRAL, sliding_window=9)) == [9] * 4
    assert windows(spec(QWEN2, sliding_window=9, max_window_layers=1)) == [0] * 4
    assert windows(spec(QWEN2, use_sliding_window=True, sliding_window=9, max_window_layers=1)) == [0, 9, 9, 9]
    kinds = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    assert windows(spec(QWEN3, use_sliding_window=True, sliding_window=9, layer_types=kinds)) == [9, 0, 0, 9]
    assert windows(spec(QWEN3_MOE, use_sliding_window=True, sliding_window=9)) == [9] * 4


def test_biases() -> None:
    def biases(architecture: str, **changes: Any) -> tuple[bool, bool]:
        mixer = spec(architecture, **changes).layers[0].mixer
        return mixer.qkv_bias, mixer.out_bias

    assert biases(LLAMA) == (False, False) and biases(LLAMA, attention_bias=True) == (True, True)
    assert biases(MISTRAL, attention_bias=True) == (False, False)  # Mistral has none
    assert biases(QWEN2) == (True, False)
    assert biases(QWEN3) == (False, False) and biases(QWEN3, attention_bias=True) == (True, True)


def test_experts() -> None:
    layer = spec(QWEN3_MOE).layers[3]
    assert layer.ffn == MoE(intermediate=48, num_experts=8, top_k=2, renormalize=True, activation="silu")
    assert spec(QWEN3_MOE, num_experts="absent", num_local_experts=8) == spec(QWEN3_MOE)
    mixtral = spec(MIXTRAL)
    assert mixtral.layers[0].ffn == MoE(intermediate=96, num_experts=4, top_k=2, renormalize=True, activation="silu")
    assert mixtral.layers[0].mixer.rope.base == 1e6
    assert isinstance(spec(LLAMA).layers[0].ffn, GatedMLP)


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        (LLAMA, {"mlp_bias": True}, "mlp_bias = True"),
        (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        (
            LLAMA,
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}},
            "partial_rotary_factor = 0.25",
        ),
        (LLAMA, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic' is not supported"),
        (QWEN2, {"rope_scaling": {"type": "mrope", "mrope_section": [1]}}, "rope scaling 'mrope' is not supported"),
        (LLAMA, {"rope_scaling": {"type": "linear"}}, "without a 'factor'"),
        (LLAMA, {"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": False}}, "truncate = False"),
        (LLAMA, {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "wants one rope for all layers"),
        (LLAMA, {"hidden_act": "xielu"}, "activation 'xielu' is not known"),
        (LLAMA, {"hidden_size": "absent"}, "has no 'hidden_size'"),
        (LLAMA, {"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        (LLAMA, {"num_key_value_heads": 3}, "num_attention_heads = 4 and num_key_value_heads = 3"),
        (LLAMA, {"head_dim": 5}, "heads of 5 dimensions"),
        (LLAMA, {"rms_norm_eps": -1}, "rms_norm_eps = -1"),
        (LLAMA, {"rope_theta": "big"}, "rope_theta = 'big'"),
        (QWEN3_MOE, {"mlp_only_layers": [1]}, r"mlp_only_layers = \[1\]"),
        (QWEN3_MOE, {"decoder_sparse_step": 2}, "decoder_sparse_step = 2"),
        (QWEN3_MOE, {"num_experts_per_tok": 9}, "num_experts_per_tok = 9, but only 8 experts"),
        (QWEN2, {"layer_types": ["full_attention"]}, "expected a list of 4 entries"),
        (QWEN2, {"layer_types": ["chunked_attention"] * 4}, "'chunked_attention' in layer_types"),
        (QWEN3, {"layer_types": ["sliding_attention"] * 4}, "but no sliding_window"),
        (QWEN2, {"use_sliding_window": True, "sliding_window": 8}, "neither layer_types nor max_window_layers"),
        (GEMMA, {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
        (GEMMA, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        (GEMMA, {"sliding_window_pattern": 0}, "sliding_window_pattern = 0"),
        (GEMMA, {"sliding_window": "absent"}, "has no 'sliding_window'"),
    ],
)
def test_what_is_not_served_is_refused_by_key_and_value(
    architecture: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        spec(architecture, **changes)


def test_an_unknown_architecture_lists_those_served() -> None:
    with pytest.raises(ConfigError, match=r"architecture FooForCausalLM is not supported: supported are .*Llama"):
        family_of({"architectures": ["FooForCausalLM"]})
    with pytest.raises(ConfigError, match=r"\(none named\)"):
        family_of({})
