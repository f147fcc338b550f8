"""`Checkpoint`: one model's files, opened and checked: configuration, tensors, tokenizer, chat template.

Opening reads configuration alone and imports no torch, so a front end can have the tokenizer without the engine.
Nothing in a model's folder is ever executed: files that ask for it are refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tenon_platforms.errors import ConfigError

from .bounded_json import read_json_object
from .gguf_file import GGUFFile
from .gguf_names import GGUFSource, config_of
from .safetensors_file import SafetensorsSource
from .tensors import TensorSource
from .tokenizer import build_gguf_tokenizer, gguf_facts, load_tokenizer_file

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pt2", "*.pkl")
_SMALL_JSON = 64 * 2**20
_CODE_KEYS = ("auto_map", "trust_remote_code", "custom_code")


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

    def load_tokenizer(self) -> Tokenizer:
        """The model's tokenizer; raises `ConfigError` where it has none."""
        if self.gguf is not None:
            return build_gguf_tokenizer(self.gguf.metadata, str(self.path))
        file = self.path / "tokenizer.json"
        if not file.is_file():
            raise ConfigError(
                f"{self.path} has no tokenizer.json", remedy="pass --tokenizer with a folder or file that has one"
            )
        return load_tokenizer_file(file)


def open_checkpoint(path: Path, *, with_tensors: bool = True) -> Checkpoint:
    """Open a folder of safetensors or a GGUF file. Raises `ConfigError` that says what is missing or damaged."""
    if path.is_file():
        return _open_gguf(path)
    if not path.is_dir():
        raise ConfigError(f"{path} is neither a folder nor a file")
    files = sorted(path.glob("*.gguf"))
    if files and not (path / "config.json").is_file():
        if len(files) > 1:
            raise ConfigError(f"{path} holds {len(files)} GGUF files: name one of {', '.join(f.name for f in files)}")
        return _open_gguf(files[0])
    return _open_folder(path, with_tensors=with_tensors)


def _open_gguf(path: Path) -> Checkpoint:
    file = GGUFFile(path)
    facts, tokens = gguf_facts(file.metadata), file.metadata.get("tokenizer.ggml.tokens") or []
    template = file.metadata.get("tokenizer.chat_template")
    ends = [
        facts.eos_token_id,
        *(file.metadata.get(f"tokenizer.ggml.{key}") for key in ("eot_token_id", "eom_token_id")),
    ]
    return Checkpoint(
        path=path,
        format="gguf",
        config=config_of(file),
        tensors=GGUFSource(file),
        chat_template=template if isinstance(template, str) else None,
        eos_token_ids=tuple(dict.fromkeys(end for end in ends if isinstance(end, int) and 0 <= end < len(tokens))),
        bos_token=None if facts.bos_token_id is None else tokens[facts.bos_token_id],
        eos_token=None if facts.eos_token_id is None else tokens[facts.eos_token_id],
        gguf=file,
    )


def _open_folder(path: Path, *, with_tensors: bool) -> Checkpoint:
    config = _checked_json(path / "config.json", required=True)
    generation = _checked_json(path / "generation_config.json")
    tokenizer = _checked_json(path / "tokenizer_config.json")
    _checked_json(path / "adapter_config.json")
    _checked_json(path / "preprocessor_config.json")
    _checked_json(path / "processor_config.json")
    return Checkpoint(
        path=path,
        format="safetensors",
        config=config,
        tensors=_tensors_of(path) if with_tensors else _NoTensors(),
        generation_config=generation,
        tokenizer_config=tokenizer,
        chat_template=_chat_template(path, tokenizer),
        eos_token_ids=_eos_ids(generation, config),
        bos_token=_token_text(tokenizer.get("bos_token")),
        eos_token=_token_text(tokenizer.get("eos_token")),
    )


class _NoTensors:
    """The tensors of a checkpoint opened for its configuration alone."""

    def names(self) -> tuple[str, ...]:
        return ()

    def info(self, name: str) -> Any:
        raise KeyError(name)

    def read(self, name: str) -> Any:
        raise KeyError(name)

    def close(self) -> None:
        """Nothing is open."""


def _tensors_of(path: Path) -> TensorSource:
    if any(path.glob("*.safetensors")):
        return SafetensorsSource.from_folder(path)
    pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
    if pickles:
        raise ConfigError(
            f"{path} holds only pickled weights ({', '.join(pickles[:3])}): loading them would run code from the file",
            remedy="convert them once, where you trust them, with safetensors.torch.save_file",
        )
    raise ConfigError(f"{path} holds no weights: expected *.safetensors or a .gguf file")


def _checked_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    if not path.is_file():
        if required:
            raise ConfigError(f"{path.parent} has no {path.name}", remedy="name a model's folder or a .gguf file")
        return {}
    content = read_json_object(path, max_bytes=_SMALL_JSON)
    _refuse_code(content, path)
    return content


def _refuse_code(content: Any, path: Path) -> None:
    """Refuse a file that asks for code of the model's folder to be run, at any depth."""
    if isinstance(content, dict):
        for key in _CODE_KEYS:
            if content.get(key):
                raise ConfigError(
                    f"{path} asks to run code from the model's folder ({key}): Tenon never does",
                    remedy="use a model whose architecture is built in, or remove the entry if the architecture is",
                )
        for value in content.values():
            _refuse_code(value, path)
    elif isinstance(content, list):
        for value in content:
            _refuse_code(value, path)


def _chat_template(path: Path, tokenizer: dict[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    stored: Any = _checked_json(path / "chat_template.json").get("chat_template") or tokenizer.get("chat_template")
    if isinstance(stored, list):
        named = {entry.get("name"): entry.get("template") for entry in stored if isinstance(entry, dict)}
        stored = named.get("default")
    return stored if isinstance(stored, str) else None


def _eos_ids(generation: dict[str, Any], config: dict[str, Any]) -> tuple[int, ...]:
    found = generation.get("eos_token_id", config.get("eos_token_id"))
    listed = found if isinstance(found, list) else [found]
    return tuple(one for one in listed if isinstance(one, int) and not isinstance(one, bool))


def _token_text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
