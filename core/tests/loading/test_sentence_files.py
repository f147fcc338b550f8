"""Sentence-transformers folders: what is read, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tenon_core.loading.sentence_files import read_sentence_layout
from tenon_core.models.heads import DenseModule, SentenceLayout
from tenon_platforms.errors import ConfigError

MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
DENSE = {"in_features": 8, "out_features": 4, "bias": False, "activation_function": "torch.nn.modules.activation.Tanh"}


def folder_of(path: Path, *modules: tuple[str, str, dict[str, Any] | None]) -> Path:
    listed = []
    for kind, name, settings in modules:
        listed.append({"idx": len(listed), "name": name, "path": name, "type": f"sentence_transformers.models.{kind}"})
        if settings is not None:
            (path / name).mkdir()
            (path / name / "config.json").write_text(json.dumps(settings))
    (path / "modules.json").write_text(json.dumps(listed))
    return path


def test_a_whole_layout(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path,
        ("Transformer", "", None),
        ("Pooling", "1_Pooling", MEAN),
        ("Dense", "2_Dense", DENSE),
        ("Normalize", "3_Normalize", None),
    )
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 256, "do_lower_case": false}')
    dense = DenseModule(folder="2_Dense", in_features=8, out_features=4, bias=False, activation="tanh")
    assert read_sentence_layout(folder) == SentenceLayout(
        pooling="mean", normalize=True, dense=(dense,), max_length=256
    )


def test_a_folder_without_modules_is_none(tmp_path: Path) -> None:
    assert read_sentence_layout(tmp_path) is None
    assert read_sentence_layout(folder_of(tmp_path, ("Transformer", "", None))) is None


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ([("Transformer", "", None), ("LSTM", "1_LSTM", {})], "LSTM"),
        ([("Normalize", "0_Normalize", None)], "Normalize"),
        ([("Pooling", "../outside", None)], "outside"),
        ([("Pooling", "1_Pooling", {"pooling_mode_max_tokens": True})], "pooling_mode_max_tokens"),
        ([("Pooling", "1_Pooling", {**MEAN, "pooling_mode_cls_token": True})], "pools by"),
        ([("Pooling", "1_Pooling", {})], "nothing"),
        ([("Pooling", "1_Pooling", MEAN), ("Dense", "2_Dense", {**DENSE, "in_features": -1})], "in_features"),
        (
            [("Pooling", "1_Pooling", MEAN), ("Dense", "2_Dense", {**DENSE, "activation_function": "os.system"})],
            "system",
        ),
    ],
)
def test_what_is_not_served_is_named(tmp_path: Path, modules: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_sentence_layout(folder_of(tmp_path, *modules))


@pytest.mark.parametrize("text", ["{}", "[]", "[1]", '[{"type": 5, "path": ""}]', "[" * 40, '[{"path": ""}]'])
def test_damaged_lists_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(ConfigError):
        read_sentence_layout(tmp_path)
