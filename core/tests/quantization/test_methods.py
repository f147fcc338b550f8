"""Configurations and tensors of quantized checkpoints: what is read, what is refused, and what a damaged file says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tenon_core.loading.checkpoint import open_checkpoint
from tenon_platforms.errors import ConfigError
from tenon_platforms.ops.linear import Dense, FP8Channel
from tenon_platforms.ops.quantized import FP8Block, FP8Static, Int8Channel, IntGroups

pytestmark = pytest.mark.unit
FP8 = torch.float8_e4m3fn
CONFIG = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
Q = "model.layers.0.self_attn.q_proj"
Make = Callable[..., Any]


@pytest.fixture
def opened(tmp_path: Path) -> Make:
    """opened(quantization_config, tensors of q_proj by their last word, others by name) -> its tensors."""

    def make(quantization: dict[str, Any], words: dict[str, Any], **others: Any) -> Any:
        held = {f"{Q}.{word}": value for word, value in words.items()} | others
        save_file({name: value.contiguous() for name, value in held.items()}, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": quantization}))
        return open_checkpoint(tmp_path).tensors

    return make


def compressed(weights: dict[str, Any], inputs: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"], **more}


FP8_STATIC = {"quant_method": "fp8", "activation_scheme": "static"}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
INT8 = compressed(
    {"num_bits": 8, "type": "int", "strategy": "channel"},
    {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
)
W4 = compressed({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32})
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


def fp8_words(**changes: Any) -> dict[str, Any]:
    made = {"weight": torch.ones(16, 64).to(FP8), "weight_scale": torch.tensor(0.5), "input_scale": torch.tensor(0.25)}
    return {word: value for word, value in {**made, **changes}.items() if value is not None}


def gptq_words(**changes: Any) -> dict[str, Any]:
    made = {
        "qweight": torch.zeros(8, 16, dtype=torch.int32),
        "qzeros": torch.full((2, 2), 0x77777777, dtype=torch.int32),
        "scales": torch.ones(2, 16).half(),
        "g_idx": torch.arange(64, dtype=torch.int32) // 32,
    }
    return {word: value for word, value in {**made, **changes}.items() if value is not None}


def packed_words(**changes: Any) -> dict[str, Any]:
    made = {
        "weight_packed": torch.zeros(16, 8, dtype=torch.int32),
        "weight_scale": torch.ones(16, 2).bfloat16(),
        "weight_shape": torch.tensor([16, 64]),
    }
    return {word: value for word, value in {**made, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("quantization", "words", "scheme"),
    [
        (FP8_STATIC, fp8_words(), FP8Static()),
        ({"quant_method": "fp8"}, fp8_words(input_scale=None), FP8Channel()),
        (BLOCKS, fp8_words(weight_scale=torch.ones(1, 1), input_scale=None), FP8Block()),
        (FP8_STATIC, {"weight": torch.ones(16, 64)}, None),
        (INT8, {"weight": torch.ones(16, 64, dtype=torch.int8), "weight_scale": torch.ones(16, 1)}, Int8Channel()),
        (W4, packed_words(), IntGroups(bits=4, group_size=32)),
        (GPTQ, gptq_words(), IntGroups(bits=4, group_size=32)),
        ({**GPTQ, "desc_act": True, "sym": False}, gptq_words(),
         IntGroups(bits=4, group_size=32, zeros=True, ordered=True)),
        (AWQ, {
            "qweight": torch.zeros(64, 2, dtype=torch.int32), "qzeros": torch.zeros(2, 2, dtype=torch.int32),
            "scales": torch.ones(2, 16).half(),
        }, IntGroups(bits=4, group_size=32, zeros=True)),
    ],
)  # fmt: skip
def test_a_module_stands_as_one_weight(opened: Make, quantization: Any, words: Any, scheme: Any) -> None:
    source = opened(quantization, words, **{"model.norm.weight": torch.ones(64), f"{Q}.bias": torch.ones(16)})
    info = source.info(f"{Q}.weight")
    assert set(source.names()) == {f"{Q}.weight", f"{Q}.bias", "model.norm.weight"} | (
        {f"{Q}.input_scale"} if scheme is None and "input_scale" in words else set()
    )
    assert (info.shape, isinstance(info.scheme, Dense)) == ((16, 64), scheme is None)
    if scheme is not None:
        assert info.scheme == scheme
        assert info.num_bytes == sum(value.nbytes for value in words.values())
        assert source.parts(f"{Q}.weight")["scale"].shape[0] == (1 if scheme == FP8Block() else 16)
        with pytest.raises(ConfigError, match="read in parts"):
            source.read(f"{Q}.weight")


@pytest.mark.parametrize(
    ("quantization", "words", "message"),
    [
        (FP8_STATIC, fp8_words(weight_scale=torch.ones(3)), r"weight_scale' is \[3\] of float32: expected"),
        (FP8_STATIC, fp8_words(weight_scale=None), r"no tensor .*weight_scale'"),
        (FP8_STATIC, fp8_words(input_scale=None), r"no tensor .*input_scale'"),
        (FP8_STATIC, fp8_words(weight=torch.ones(16, 64)), "since it has a scale"),
        (FP8_STATIC, {"weight": torch.ones(16, 64).to(torch.float8_e5m2)}, "float8_e5m2"),
        (BLOCKS, fp8_words(weight_scale=torch.ones(2, 1)), r"is \[2, 1\] of float32: expected \[1, 1\]"),
        (INT8, fp8_words(), "weight' is .*: expected a matrix of int8"),
        (W4, packed_words(weight_scale=torch.ones(16, 3)), r"is \[16, 3\] of float32: expected \[16, 2\]"),
        (W4, packed_words(weight_packed=None), "weight_packed"),
        (GPTQ, gptq_words(scales=torch.ones(3, 16).half()), r"scales' is \[3, 16\]"),
        (GPTQ, gptq_words(qzeros=torch.zeros(2, 3, dtype=torch.int32)), r"qzeros' is \[2, 3\]"),
        (GPTQ, gptq_words(qweight=torch.zeros(8, 16)), "expected a matrix of int32"),
        ({**GPTQ, "desc_act": True}, gptq_words(g_idx=None), r"no tensor .*g_idx'"),
        (compressed({"num_bits": 4, "type": "int", "strategy": "channel"}) | {"ignore": ["re:.*q_proj"]},
         packed_words(), "targets no such module"),
    ],
)  # fmt: skip
def test_a_damaged_index_names_the_tensor(opened: Make, quantization: Any, words: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        opened(quantization, words)


@pytest.mark.parametrize(
    ("quantization", "words", "message"),
    [
        (FP8_STATIC, fp8_words(weight_scale=torch.tensor(float("nan"))), "weight_scale' holds a scale that is not"),
        (GPTQ, gptq_words(qzeros=torch.zeros(2, 2, dtype=torch.int32)), "other than 8, though .* sym"),
        (GPTQ, gptq_words(g_idx=torch.arange(64, dtype=torch.int32).flip(0) // 32), "out of order"),
        ({**GPTQ, "desc_act": True}, gptq_words(g_idx=torch.full((64,), 2, dtype=torch.int32)), "outside of 0 to 1"),
        (W4, packed_words(weight_shape=torch.tensor([16, 60])), r"says \[16, 60\]"),
        (W4, packed_words(weight_scale=torch.full((16, 2), float("inf"))), "not finite"),
    ],
)
def test_damaged_values_are_found_when_they_are_read(opened: Make, quantization: Any, words: Any, message: str) -> None:
    source = opened(quantization, words)
    with pytest.raises(ConfigError, match=message):
        source.parts(f"{Q}.weight")


FLOAT8, FLOAT4 = {"num_bits": 8, "type": "float", "strategy": "tensor"}, {"num_bits": 4, "type": "float"}


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({**GPTQ, "bits": 3}, "bits = 3"),
        ({**GPTQ, "group_size": 0}, "group_size = 0"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "'marlin'"),
        ({**GPTQ, "dynamic": {"+:.*": {"bits": 8}}}, "modules differ"),
        ({**GPTQ, "sym": "yes"}, "true or false"),
        ({**AWQ, "version": "gemv"}, "'gemv'"),
        ({**AWQ, "zero_point": False}, "without zero points"),
        (compressed(FLOAT8), "activations are not FP8"),
        (compressed(FLOAT4, FLOAT4), "4 bits"),
        (compressed({"num_bits": 8, "type": "int", "strategy": "channel"}, {"num_bits": 8, "dynamic": False}), "W8A8"),
        (compressed({"num_bits": 4, "type": "int", "strategy": "channel"}, {"num_bits": 8}), "of this kind"),
        (compressed({"num_bits": 2, "type": "int", "strategy": "channel"}), "num_bits = 2"),
        (compressed(FLOAT8, FLOAT8, format="marlin-24"), "'marlin-24'"),
        (compressed(FLOAT8, FLOAT8, sparsity_config={"format": "sparse-24-bitmask"}), "sparsity"),
        (compressed(FLOAT8, FLOAT8, transform_config={"a": 1}), "transforms"),
        ({"quant_method": "compressed-tensors"}, "no config_groups"),
    ],
)
def test_what_is_not_served_is_refused_by_name(opened: Make, quantization: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        opened(quantization, {"weight": torch.ones(16, 64)})
    assert "quantization_config" in error.value.message


def test_a_name_comes_before_the_class_and_cache_scales_are_left_out(
    opened: Make, caplog: pytest.LogCaptureFixture
) -> None:
    quantization = compressed(FLOAT8, {**FLOAT8, "dynamic": True})
    quantization["config_groups"]["group_1"] = {
        "targets": ["re:.*k_proj$"],
        "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
    }
    k = Q.replace("q_proj", "k_proj")
    packed = {
        f"{k}.weight_packed": torch.zeros(16, 16, dtype=torch.int32),
        f"{k}.weight_scale": torch.ones(16, 1),
        f"{k}.weight_shape": torch.tensor([16, 64]),
    }
    scale = {Q.replace("q_proj", "k_scale"): torch.tensor(1.0)}
    source = opened(quantization, fp8_words(input_scale=None), **packed, **scale)
    assert source.info(f"{Q}.weight").scheme == FP8Channel()
    assert source.info(f"{k}.weight").scheme == IntGroups(bits=8, group_size=0)
    assert set(source.names()) == {f"{Q}.weight", f"{k}.weight"}
    assert "1 scales of a quantized KV cache" in caplog.text
