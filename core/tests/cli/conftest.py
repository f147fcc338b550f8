"""Runs the command line in this process, and makes a tiny checkpoint for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "eos_token_id": 256,
}


END = "<|end|>"
CHAT_TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


@dataclass(frozen=True, slots=True)
class Ran:
    """What one command did."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def tenon(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """`tenon("plugins", "--json")` -> exit code and what was printed. The environment's own settings are left out."""
    from tenon_core.cli.main import run

    for name in ("TENON_PLATFORM", "TENON_DEBUG", "TENON_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: object) -> Ran:
        code = run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return call


@pytest.fixture(scope="session")
def config_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's configuration without weights."""
    folder = tmp_path_factory.mktemp("config-only")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole checkpoint: configuration, random weights, a tokenizer of bytes, a chat template."""
    import torch
    from safetensors.torch import save_file

    from tenon_core.models.families.llama import FAMILY
    from tenon_core.models.weights import DummySource
    from tenon_platforms.dtypes import DType

    torch.set_num_threads(1)  # so small a model only waits for other threads
    folder = tmp_path_factory.mktemp("tiny")
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    source = DummySource.for_model(FAMILY.spec(CONFIG, 256), FAMILY.weights, dtype=DType.FLOAT32)
    save_file({name: source.tensors(name)["weight"] for name in source.names()}, folder / "model.safetensors")
    return folder


def write_tokenizer(folder: Path) -> None:
    """A token a byte, and an end token."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": END, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
