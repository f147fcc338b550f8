"""Opening a model's folder: what is read as data, and what is refused (attack cases T09, T10, T13, T16)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tenon_core.loading.checkpoint import Checkpoint, open_checkpoint
from tenon_core.loading.files import MAX_CONFIG_BYTES
from tenon_platforms.errors import ConfigError

pytestmark = pytest.mark.unit
CONFIG: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "vocab_size": 8, "eos_token_id": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file({"w": torch.zeros(2)}, folder / "model.safetensors")
    return folder


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def test_a_folder_opens(folder: Path) -> None:
    write(folder, "tokenizer_config.json", {"bos_token": {"content": "<s>"}, "eos_token": "</s>"})
    opened = open_checkpoint(folder)
    assert isinstance(opened, Checkpoint)
    assert (opened.path, opened.format, opened.config) == (folder, "safetensors", CONFIG)
    assert list(opened.tensors.names()) == ["w"]
    assert (opened.bos_token, opened.eos_token, opened.eos_token_ids) == ("<s>", "</s>", (2,))
    assert opened.chat_template is None and opened.gguf is None
    with pytest.raises(ConfigError, match=r"(?s)has no tokenizer\.json.*--tokenizer"):
        opened.load_tokenizer()


def test_the_configuration_alone(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    opened = open_checkpoint(folder, with_tensors=False)
    assert opened.config == CONFIG and not list(opened.tensors.names())
    with pytest.raises(ConfigError, match="no tensor 'w'"):
        opened.tensors.read("w")
    with pytest.raises(ConfigError, match="holds no weights"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({}, {}, (2,)),
        ({"eos_token_id": [5, 3, 5]}, {}, (5, 3)),
        ({"eos_token_id": 4}, {}, (4,)),
        ({"eos_token_id": None}, {}, (2,)),
        ({}, {"eos_token_id": None}, ()),
        ({}, {"eos_token_id": [1, 2]}, (1, 2)),
    ],
)
def test_end_tokens(generation: Any, config: Any, expected: tuple[int, ...], folder: Path) -> None:
    write(folder, "config.json", {**CONFIG, **config})
    write(folder, "generation_config.json", generation)
    assert open_checkpoint(folder).eos_token_ids == expected


@pytest.mark.parametrize("wrong", [-1, [2, -5], 1 << 24, 1 << 63, "2", True, 1.5, {"a": 1}, [[2]]])
def test_end_tokens_that_are_no_token(wrong: Any, folder: Path) -> None:
    write(folder, "generation_config.json", {"eos_token_id": wrong})
    with pytest.raises(ConfigError, match="names the end token"):
        open_checkpoint(folder)


def test_where_the_chat_template_comes_from(folder: Path) -> None:
    assert open_checkpoint(folder).chat_template is None
    write(folder, "tokenizer_config.json", {"chat_template": "T"})
    assert open_checkpoint(folder).chat_template == "T"
    named = [{"name": "tool_use", "template": "U"}, {"name": "default", "template": "D"}]
    write(folder, "tokenizer_config.json", {"chat_template": named})
    assert open_checkpoint(folder).chat_template == "D"
    write(folder, "chat_template.json", {"chat_template": "J"})
    assert open_checkpoint(folder).chat_template == "J"
    write(folder, "chat_template.jinja", "{{ '\u00e9' }}")
    assert open_checkpoint(folder).chat_template == "{{ '\u00e9' }}"
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        open_checkpoint(folder)
    write(folder, "chat_template.jinja", "x" * (2**20 + 1))
    with pytest.raises(ConfigError, match="larger than"):
        open_checkpoint(folder)


CODE = {"AutoModel": "modeling_canary.Model"}


@pytest.mark.parametrize("key", ["auto_map", "trust_remote_code", "custom_code"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "preprocessor_config.json",
        "processor_config.json",
        "video_preprocessor_config.json",
        "adapter_config.json",
        "special_tokens_map.json",
        "anything.json",
    ],
)
def test_code_is_refused_by_the_name_of_the_file(name: str, nested: bool, key: str, folder: Path) -> None:
    (folder / "modeling_canary.py").write_text("raise SystemExit('imported')")
    asks = {key: CODE if key == "auto_map" else True}
    base = CONFIG if name == "config.json" else {}
    write(folder, name, {**base, **({"text_config": [{"deep": asks}]} if nested else asks)})
    for with_tensors in (True, False):
        with pytest.raises(ConfigError, match=rf"(?s){name} asks to run code.*{key}"):
            open_checkpoint(folder, with_tensors=with_tensors)
    assert "modeling_canary" not in sys.modules


def test_code_hidden_by_an_escape_is_still_code(folder: Path) -> None:
    write(folder, "tokenizer_config.json", r'{"auto\u005fmap": {"AutoTokenizer": "x.Y"}}')
    with pytest.raises(ConfigError, match="asks to run code"):
        open_checkpoint(folder)


def test_refusals_hold_without_asserts(folder: Path) -> None:
    write(folder, "config.json", {**CONFIG, "auto_map": CODE})
    code = (
        "import sys; from pathlib import Path; from tenon_core.loading.checkpoint import open_checkpoint\n"
        "from tenon_platforms.errors import ConfigError\n"
        "try: open_checkpoint(Path(sys.argv[1]))\n"
        "except ConfigError: sys.exit(7)"
    )
    assert subprocess.run([sys.executable, "-O", "-c", code, str(folder)], check=False).returncode == 7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"quant_method": "bitsandbytes"},
            ".bitsandbytes., which is not supported .*: supported are .*fp8",
        ),
        ({"quant_method": "fp8", "activation_scheme": "odd"}, "activation_scheme 'odd'"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "format 'e5m2'"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "block size"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["re:(a+)+b"]}, "repeats a group"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["re:(a"]}, "is none"),
        ({"bits": 4}, "an unnamed method"),
        ("os.system", "an unnamed method"),
    ],
)
@pytest.mark.parametrize("holder", [None, "text_config"])
def test_quantizations_that_are_not_read_are_refused_by_name(
    content: Any, message: str, holder: str | None, folder: Path
) -> None:
    config = {"quantization_config": content}
    write(folder, "config.json", {**CONFIG, **(config if holder is None else {holder: config})})
    with pytest.raises(ConfigError, match=message):
        open_checkpoint(folder)
    write(folder, "config.json", {**CONFIG, "quantization_config": None})
    open_checkpoint(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not valid JSON"),
        ("[]", "holds a JSON list"),
        ("3", "holds a JSON int"),
        ('{"a": NaN}', "NaN is no JSON number"),
        ('{"a": -Infinity}', "Infinity is no JSON number"),
        ('{"a": 1e999}', "too large"),
        ('{"a": ' + "1" * 401 + "}", "400 digits"),
        ('{"a": 1, "a": 2}', "'a' comes twice"),
        ('{"b": {"a": 1, "a": 2}}', "'a' comes twice"),
        ('{"a": ' * 65 + "1" + "}" * 65, "nested deeper than 64"),
        ('{"a": ' + "[" * 200_000, "nested deeper than 64"),
        ('{"a": "' + "x" * MAX_CONFIG_BYTES + '"}', "is larger than"),
        ('{"num_hidden_layers": 1000000000}', "num_hidden_layers = 1000000000: expected at most"),
    ],
    ids=range(13),
)
def test_hostile_configurations(content: str, message: str, folder: Path) -> None:
    write(folder, "config.json", content)
    start = time.process_time()
    with pytest.raises(ConfigError, match=message):
        open_checkpoint(folder)
    assert time.process_time() - start < 1


def test_depth_counts_nesting_and_not_brackets_in_texts(folder: Path) -> None:
    write(folder, "config.json", {**CONFIG, "note": "[" * 500 + '"\\'})
    nested: Any = {}
    for _ in range(60):
        nested = {"a": nested}
    write(folder, "generation_config.json", nested)
    open_checkpoint(folder)


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja", "tokenizer.json"]
)
@pytest.mark.parametrize("kind", ["link out", "link to a device", "pipe", "folder", "dangling", "loop"])
def test_nothing_is_read_outside_and_nothing_blocks(kind: str, name: str, folder: Path) -> None:
    target = folder / name
    target.unlink(missing_ok=True)
    (folder.parent / "secret").write_text("{}")
    if kind == "pipe":
        os.mkfifo(target)
    elif kind == "folder":
        target.mkdir()
    else:
        where = {"link out": "../secret", "link to a device": "/dev/zero", "dangling": "../none", "loop": name}
        target.symlink_to(where[kind])
    start = time.monotonic()
    with pytest.raises(ConfigError, match=r"outside the model folder|not a regular file|cannot (open|follow)"):
        open_checkpoint(folder).load_tokenizer()
    assert time.monotonic() - start < 5


def test_a_link_inside_the_folder_is_a_file(folder: Path) -> None:
    (folder / "config.json").rename(folder / "real.txt")
    (folder / "config.json").symlink_to("real.txt")
    assert open_checkpoint(folder).config == CONFIG


def test_what_is_no_model_is_said(folder: Path) -> None:
    with pytest.raises(ConfigError, match="neither a folder nor"):
        open_checkpoint(folder / "none")
    os.mkfifo(folder / "pipe")
    with pytest.raises(ConfigError, match="neither a folder nor"):
        open_checkpoint(folder / "pipe")
    with pytest.raises(ConfigError, match=r"(?s)is one file of a model.*name its folder"):
        open_checkpoint(folder / "model.safetensors")
    with pytest.raises(ConfigError, match=r"is no valid GGUF|is no GGUF"):
        open_checkpoint(folder / "config.json")
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        open_checkpoint(folder)
    for name in ("a.gguf", "b.gguf"):
        (folder / name).write_bytes(bytes(30))
    with pytest.raises(ConfigError, match=r"holds 2 GGUF files: name one of a\.gguf, b\.gguf"):
        open_checkpoint(folder)
    (folder / "b.gguf").unlink()
    (folder / "a.gguf").unlink()
    (folder.parent / "out.gguf").write_bytes(bytes(30))
    (folder / "a.gguf").symlink_to("../out.gguf")
    with pytest.raises(ConfigError, match="outside the model folder"):
        open_checkpoint(folder)


def test_configuration_and_tokenizers_need_no_torch() -> None:
    code = (
        "import sys; import tenon_core.loading.checkpoint, tenon_core.loading.sources\n"
        "heavy = {'torch', 'transformers', 'huggingface_hub', 'safetensors', 'rich', 'numpy'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
