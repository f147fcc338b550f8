"""Quantized safetensors checkpoints: greedy tokens are those of what the file means, on every platform.

Where a kernel rounds activations, the reference does as the scheme says, in float64. A value in the middle of two codes
may go either way and move all that follows, so a few tokens may differ; without the rounding a third of them do.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import MAX_LEN, drive, open_platform, prompts_of, request
from equality import Reference, assert_greedy_equal, hf_reference
from quantized_files import FORMATS, Quantized, write
from quantized_reference import calibrated, emulated, load_plain, num_differing, shaken
from safetensors.torch import load_file, save_file
from tiny_models import TinyModel

from tenon_core.config import EngineConfig
from tenon_core.engine.assembly import Assembled, Sockets
from tenon_core.engine.start import load, open_model
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError
from tenon_plugin_sdk.conformance.truth.equality import logits_of

pytestmark = pytest.mark.e2e
FLIPPED = 3  # of 64 tokens: those that hang on a value in the middle of two codes
PROMPTS = prompts_of((1, 9, 40, 90))
NEW_TOKENS = 16


@pytest.fixture(scope="module")
def written(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], TinyModel]
) -> Callable[[str, str], Quantized]:
    """Writes a checkpoint in a format once."""

    @cache
    def make(model: str, form: str) -> Quantized:
        tiny = tiny_model(model)
        input_max = calibrated(tiny.model, PROMPTS[2]) if FORMATS[form].rounding is not None else None
        return write(tiny.path, tmp_path_factory.mktemp(f"{model}-{form}"), FORMATS[form], input_max)

    return make


def start(path: Path, platform_name: str, **flat: Any) -> Assembled:
    """An engine over a folder, as start-up makes one."""
    config = EngineConfig.from_flat(
        model=str(path), dtype="float32", **{"max_num_seqs": 4, "max_model_len": MAX_LEN, **flat}
    )
    sockets = Sockets.open(open_platform(platform_name))
    return load(config, sockets, open_model(config), dtype=DType.FLOAT32, kv_dtype=DType.FLOAT32)


def generated(assembled: Assembled) -> list[list[int]]:
    """Greedy tokens of every prompt."""
    outcome = drive(assembled.engine, [request(i, prompt, max_tokens=NEW_TOKENS) for i, prompt in enumerate(PROMPTS)])
    return [outcome.of(i) for i in range(len(PROMPTS))]


def served(assembled: Assembled, scheme: str) -> set[str]:
    """How linears of a scheme are served."""
    return {
        choice.kernel.native
        for choice in assembled.table.choices
        if any(one.id.startswith(scheme) for one in getattr(choice.spec, "schemes", ()))
    }


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_tokens_are_those_of_what_the_file_means(
    form: str, platform_name: str, written: Callable[[str, str], Quantized]
) -> None:
    checkpoint = written("qwen2", form)  # biases, grouped queries
    assembled = start(checkpoint.path, platform_name)
    ways = served(assembled, FORMATS[form].scheme)
    assert ways, "no linear has the format's scheme"
    found, model = generated(assembled), load_plain(checkpoint.meant)
    if ways == {"emulated"}:
        assert num_differing(found, PROMPTS, emulated(model, FORMATS[form], checkpoint.input_max)) <= FLIPPED
        return
    reference = hf_reference(model)
    if "native" in ways:  # activations in 16-bit codes: the error is what that does to weights
        reference = Reference(narrow=logits_of(shaken(model)), wide=reference.wide)
    for i, (tokens, prompt) in enumerate(zip(found, PROMPTS, strict=True)):
        assert_greedy_equal(tokens, reference, prompt, label=f"{form} on {platform_name}, prompt {i}")


def test_a_forgotten_rounding_would_be_seen(written: Callable[[str, str], Quantized]) -> None:
    checkpoint = written("qwen2", "fp8-static")
    found = generated(start(checkpoint.path, "reference"))
    assert num_differing(found, PROMPTS, load_plain(checkpoint.meant).double()) > 3 * FLIPPED


@pytest.mark.parametrize(
    ("model", "form"),
    [
        ("qwen3_moe", "gptq-w4"),
        ("mixtral", "ct-fp8-channel"),
        ("qwen3", "awq"),
        ("llama-tied-biased-llama3", "ct-int8"),
    ],
)
def test_experts_and_tied_heads(model: str, form: str, written: Callable[[str, str], Quantized]) -> None:
    checkpoint = written(model, form)  # the CPU's kernels keep activations, so experts compare with what the file means
    found, meant = generated(start(checkpoint.path, "cpu")), load_plain(checkpoint.meant)
    reference = Reference(narrow=logits_of(shaken(meant)), wide=hf_reference(meant).wide)
    for i, (tokens, prompt) in enumerate(zip(found, PROMPTS, strict=True)):
        assert_greedy_equal(tokens, reference, prompt, label=f"{form} of {model}, prompt {i}")


def test_experts_of_two_kinds_are_refused(written: Callable[[str, str], Quantized], tmp_path: Path) -> None:
    checkpoint = written("qwen3_moe", "gptq-w4")
    name = "model.layers.1.mlp.experts.3.up_proj"
    tensors = load_file(checkpoint.path / "model.safetensors")
    for word in ("qweight", "qzeros", "scales", "g_idx"):
        del tensors[f"{name}.{word}"]
    tensors[f"{name}.weight"] = torch.zeros(48, 64)
    folder = shutil.copytree(checkpoint.path, tmp_path / "mixed")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"experts of one layer differ .*int4-group32.*dense-float32"):
        start(folder, "reference")


def test_inspect_and_ops_show_schemes_without_reading_weights(
    written: Callable[[str, str], Quantized], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenon_core.cli.dry_model import op_choices
    from tenon_core.cli.model_card import open_card, summary
    from tenon_core.loading.safetensors_source import SafetensorsSource

    path = written("qwen3_moe", "gptq-w4").path
    monkeypatch.setattr(SafetensorsSource, "read", None)
    config = EngineConfig.from_flat(model=str(path), platform="reference", dtype="float32")
    shown = {item["scheme"]: item for item in summary(open_card(config))["weights"]}
    linears = 3 * (2 * 64 * 128 + 2 * 64 * 64 + 8 * 3 * 48 * 64)
    assert shown["int4-group32"]["parameters"] == linears
    assert shown["int4-group32"]["bytes"] > linears // 2
    choices = op_choices(config)["choices"]
    quantized = {item["op"] for item in choices if "int4-group32" in item["summary"]}
    assert quantized == {"merged_linear", "add_rms_norm_then", "moe_layer"}
    assert {item["native"] for item in choices if item["op"] == "moe_layer"} == {"dequantize"}


def test_a_platform_that_says_nothing_of_a_scheme_gets_the_reference(
    written: Callable[[str, str], Quantized], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    platform = open_platform("cpu")
    old = dataclasses.replace(platform.capabilities(None), schemes={"dense-*": "native"})
    monkeypatch.setattr(type(platform), "capabilities", lambda self, device: old)
    monkeypatch.setattr(type(platform), "register_ops", lambda self, table, device: None)
    assembled = start(written("qwen2", "fp8-static").path, "cpu")
    assert "says nothing of weights stored as fp8-static" in caplog.text
    assert "merged_linear" in str(assembled.table.reference_line())
