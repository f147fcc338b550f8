"""`Checkpoint`: one model's files, opened and checked: configuration, tensors, tokenizer, chat template.

Opening reads configuration alone and imports no torch, so a front end can have the tokenizer without the engine.
Nothing in a model's folder is ever executed: files that ask for it are refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tenon_core.models.heads import SentenceLayout
from tenon_core.quantization.config import quantization_of
from tenon_platforms.errors import ConfigError

from .config_checks import check_config, refuse_code
from .files import confined, existing, read_json, read_text
from .gguf_file import GGUFFile
from .gguf_source import GGUFSource
from .gguf_tokenizer import GGUFTokenizer
from .quantized_source import QuantizedSource
from .safetensors_source import SafetensorsSource
from .sentence_files import read_sentence_layout
from .tensors import TensorSource
from .tokenizer import load_tokenizer_file

MAX_TEMPLATE_BYTES = 1 << 20
MAX_TOKEN_ID = 1 << 24
# JSON files of a folder that are data, however they are named; every other one is searched for code.
_DATA = ("tokenizer.json", "vocab.json", "tekken.json", "added_tokens.json", "modules.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """An opened model. format: "safetensors" or "gguf". config: Hugging Face keys. eos_token_ids: all that end one."""

    path: Path
    format: str
    config: dict[str, Any]
    tensors: TensorSource
    generation_config: dict[str, Any] = field(default_factory=dict)
    tokenizer_config: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token: str | None = None
    eos_token: str | None = None
    gguf: GGUFFile | None = None
    sentence: SentenceLayout | None = None

    def load_tokenizer(self) -> Tokenizer:
        """The model's tokenizer; raises `ConfigError` where it has none."""
        if self.gguf is not None:
            return GGUFTokenizer(self.gguf.metadata, str(self.path)).build()
        file = existing(self.path, "tokenizer.json")
        if file is None:
            raise ConfigError(
                f"{self.path} has no tokenizer.json", remedy="pass --tokenizer with a folder or file that has one"
            )
        return load_tokenizer_file(file)


def open_checkpoint(path: Path, *, with_tensors: bool = True) -> Checkpoint:
    """Open a folder of safetensors or a GGUF file. Raises `ConfigError` that says what is missing or damaged."""
    if path.is_file():
        if path.suffix == ".safetensors":
            raise ConfigError(f"{path} is one file of a model", remedy=f"name its folder: {path.parent}")
        return _open_gguf(path)
    if not path.is_dir():
        raise ConfigError(f"{path} is neither a folder nor a regular file")
    files = sorted(file.name for file in path.glob("*.gguf"))
    if files and existing(path, "config.json") is None:
        if len(files) > 1:
            raise ConfigError(f"{path} holds {len(files)} GGUF files: name one of {', '.join(files[:8])}")
        return _open_gguf(confined(path, files[0], named_by=str(path)))
    return _open_folder(path, with_tensors=with_tensors)


def _open_gguf(path: Path) -> Checkpoint:
    file = GGUFFile(path)
    try:
        tensors, tokenizer = GGUFSource(file), GGUFTokenizer(file.metadata, str(path))
    except BaseException:
        file.close()
        raise
    template = file.metadata.get("tokenizer.chat_template")
    return Checkpoint(
        path=path,
        format="gguf",
        config=tensors.config,
        tensors=tensors,
        chat_template=template if isinstance(template, str) else None,
        eos_token_ids=tokenizer.end_ids,
        bos_token=tokenizer.text_of(tokenizer.bos_token_id),
        eos_token=tokenizer.text_of(tokenizer.eos_token_id),
        gguf=file,
    )


def _open_folder(path: Path, *, with_tensors: bool) -> Checkpoint:
    read = _read_configs(path)
    if "config.json" not in read:
        raise ConfigError(f"{path} has no config.json", remedy="name a model's folder or a .gguf file")
    config = read["config.json"]
    check_config(config, path / "config.json")
    generation, tokenizer = read.get("generation_config.json", {}), read.get("tokenizer_config.json", {})
    sentence = read_sentence_layout(path)
    quantization = quantization_of(config, path / "config.json")
    tensors = SafetensorsSource({}, {})
    if with_tensors:
        tensors = SafetensorsSource.open_folder(path)
        for module in () if sentence is None else sentence.dense:
            tensors = tensors.joined(module.folder, SafetensorsSource.open_folder(_module_folder(path, module.folder)))
    return Checkpoint(
        path=path,
        format="safetensors",
        config=config,
        tensors=tensors if quantization is None or not with_tensors else QuantizedSource(tensors, quantization),
        sentence=sentence,
        generation_config=generation,
        tokenizer_config=tokenizer,
        chat_template=_chat_template(path, read.get("chat_template.json", {}), tokenizer),
        eos_token_ids=_eos_ids(path, generation, config),
        bos_token=_token_text(tokenizer.get("bos_token")),
        eos_token=_token_text(tokenizer.get("eos_token")),
    )


def _module_folder(path: Path, folder: str) -> Path:
    return confined(path, folder, named_by=str(path / "modules.json"))


def _read_configs(folder: Path) -> dict[str, dict[str, Any]]:
    """Every JSON file of the folder but data: file name -> content, none of which asks for code."""
    read = {}
    for name in sorted(path.name for path in folder.glob("*.json")):
        if name in _DATA or name.endswith(".index.json"):
            continue
        path = confined(folder, name, named_by=str(folder))
        read[name] = read_json(path)
        refuse_code(read[name], path)
    return read


def _chat_template(folder: Path, in_file: dict[str, Any], tokenizer: dict[str, Any]) -> str | None:
    file = existing(folder, "chat_template.jinja")
    if file is not None:
        return read_text(file, MAX_TEMPLATE_BYTES)
    stored: Any = in_file.get("chat_template") or tokenizer.get("chat_template")
    if isinstance(stored, list):
        named = {entry.get("name"): entry.get("template") for entry in stored if isinstance(entry, dict)}
        stored = named.get("default")
    return stored if isinstance(stored, str) else None


def _eos_ids(folder: Path, generation: dict[str, Any], config: dict[str, Any]) -> tuple[int, ...]:
    found = generation.get("eos_token_id")
    found = config.get("eos_token_id") if found is None else found
    listed = [] if found is None else found if isinstance(found, list) else [found]
    for one in listed:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < MAX_TOKEN_ID:
            raise ConfigError(f"{folder} names the end token {one!r:.80}: expected a token's number")
    return tuple(dict.fromkeys(listed))


def _token_text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
