"""`tenon inspect` and `tenon ops` on a tiny checkpoint, with weights and from its configuration alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenon_core.cli.model_card import layer_kinds
from tenon_platforms.errors import ConfigError
from tenon_platforms.ops.references import REFERENCES

pytestmark = pytest.mark.unit

# 2 x 258 x 32 (embedding, head) + final norm + 3 layers of q, k, v, o, gate, up, down and two norms
PARAMETERS = 2 * 258 * 32 + 32 + 3 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32 + 2 * 32)
KV_BYTES = 3 * 2 * 2 * 8 * 4  # layers, keys and values, KV heads, head dim, float32


@pytest.mark.parametrize("kind", ["weights", "configuration"])
def test_inspect(tenon: Callable[..., Any], tiny_model: Path, config_folder: Path, kind: str) -> None:
    found = tenon("inspect", tiny_model if kind == "weights" else config_folder, "--json").json()
    assert found["format"] == ("safetensors" if kind == "weights" else "configuration only")
    assert (found["parameters"], found["bytes"]) == (PARAMETERS, 4 * PARAMETERS)
    assert [item["scheme"] for item in found["weights"]] == ["dense-float32"]
    assert found["kv_bytes_per_token"] == KV_BYTES
    assert (found["num_layers"], found["layer_pattern"], found["layers"][0]["count"]) == (3, "3A", 3)
    assert (found["context"], found["family"]) == (256, "llama")
    assert [group["layers"] for group in found["groups"]] == [[0, 1, 2]]


def test_inspect_for_people(tenon: Callable[..., Any], tiny_model: Path) -> None:
    ran = tenon("inspect", tiny_model)
    assert ran.code == 0
    for words in ("LlamaForCausalLM", "256 tokens", "3 layers: 3A", "A x3", "4/2 heads x 8", "384 B a token"):
        assert words in ran.out, words


def test_inspect_reads_no_weights(tenon: Callable[..., Any], tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tenon_core.loading.safetensors_source import SafetensorsSource

    def refuse(self: object, name: str) -> None:
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(SafetensorsSource, "read", refuse)
    assert tenon("inspect", tiny_model).code == 0
    assert tenon("ops", tiny_model, "--platform", "reference").code == 0


def test_architectures(tenon: Callable[..., Any]) -> None:
    found = tenon("inspect", "--architectures", "--json").json()
    assert "LlamaForCausalLM" in found["llama"]
    assert "Gemma3ForCausalLM" in tenon("inspect", "--architectures").out


def test_unsupported_architecture(tenon: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["FooForCausalLM"]}')
    ran = tenon("inspect", tmp_path)
    assert ran.code == 2 and "FooForCausalLM" in ran.err and "supported are" in ran.err


def test_layer_pattern_of_two_kinds() -> None:
    from tenon_core.models.families.gemma3 import FAMILY

    sliding, full = "sliding_attention", "full_attention"
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "sliding_window": 16,
        "layer_types": [sliding, sliding, sliding, full],
        "query_pre_attn_scalar": 8,
    }
    kinds, pattern = layer_kinds(FAMILY.spec(config, 128).layers)
    assert pattern == "3A B"
    assert [kind["count"] for kind in kinds] == [3, 1]
    assert "window 16" in kinds[0]["mixer"] and "full" in kinds[1]["mixer"]


@pytest.mark.parametrize("kind", ["weights", "configuration"])
def test_ops(tenon: Callable[..., Any], tiny_model: Path, config_folder: Path, kind: str) -> None:
    model = tiny_model if kind == "weights" else config_folder
    found = tenon("ops", model, "--platform", "reference", "--json").json()
    assert (found["platform"], found["dtype"]) == ("reference", "float32")
    choices = found["choices"]
    assert {item["op"] for item in choices} == set(REFERENCES) - {"moe_layer", "layer_norm", "mlp", "mean_pool"}
    assert all(item["source"] in ("reference", "decomposed") for item in choices)
    uses = {item["op"]: item["uses"] for item in choices}
    normed = [item["uses"] for item in choices if item["op"] == "add_rms_norm_then"]
    assert (uses["qk_norm_rope_kv_write"], sorted(normed)) == (3, [2, 3])  # the first layer has nothing to add yet


def test_ops_tells_refusals_and_sources(tenon: Callable[..., Any], tiny_model: Path) -> None:
    found = tenon("ops", tiny_model, "--platform", "null", "--json").json()
    sources = {item["op"]: item["source"] for item in found["choices"]}
    assert sources["attention"] == sources["row_writes"] == "null"
    assert sources["rms_norm"] == "reference"
    assert "ops on the reference path" in found["reference_line"]


def test_ops_is_as_strict_as_a_start(tenon: Callable[..., Any], tiny_model: Path) -> None:
    ran = tenon("ops", tiny_model, "--platform", "null", "--strict-ops")
    assert ran.code == 2 and "--strict-ops: platform 'null' has no kernel for" in ran.err


def test_ops_and_a_start_choose_alike(tiny_model: Path) -> None:
    """The dry model asks for exactly what a start asks for."""
    from tenon_core.cli.dry_model import op_choices
    from tenon_core.config import EngineConfig
    from tenon_core.engine.start import start_with_report

    config = EngineConfig.from_flat(model=str(tiny_model), platform="reference", num_blocks=40, max_num_seqs=4)
    engine, report = start_with_report(config)
    started = {choice.spec.fingerprint(): choice.kernel.name for choice in report.assembled.table.choices}
    engine.shutdown()
    dry = {item["fingerprint"]: item["kernel"] for item in op_choices(config)["choices"]}
    assert dry == started


def test_open_card_refuses_unknown_paths() -> None:
    from tenon_core.cli.model_card import open_card
    from tenon_core.config import EngineConfig

    with pytest.raises(ConfigError, match="/no/such"):
        open_card(EngineConfig.from_flat(model="/no/such"))
