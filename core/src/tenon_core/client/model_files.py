"""What a front end reads of a model: tokenizer and chat template. Weights and torch stay out of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tenon_core.config import EngineConfig
from tenon_core.loading.checkpoint import Checkpoint, open_checkpoint
from tenon_core.loading.files import read_text
from tenon_core.loading.sources import resolve_model
from tenon_core.loading.tokenizer import load_tokenizer_file
from tenon_platforms.errors import ConfigError

from .tokenizer import ClientTokenizer

MAX_TEMPLATE_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """path: the model's folder or file on this machine. chat_template: its source, or None where there is none."""

    path: Path
    tokenizer: ClientTokenizer
    chat_template: str | None = None


def resolve_path(config: EngineConfig) -> Path:
    """The model as a local path, downloaded where need be. Raises `ConfigError`."""
    return resolve_model(config.model.model, revision=config.model.revision, cache_dir=config.model.download_dir)


def open_model_files(config: EngineConfig, *, path: Path | None = None, template: str | None = None) -> ModelFiles:
    """Open what a front end needs. path: the model, where it is resolved already. template: a file of the operator's.

    Raises `ConfigError` for what is missing or damaged.
    """
    path = resolve_path(config) if path is None else path
    source = path
    if config.model.tokenizer is not None:
        source = resolve_model(
            config.model.tokenizer, revision=config.model.revision, cache_dir=config.model.download_dir
        )
    chat_template: str | None = None
    if source.is_file() and source.suffix == ".json":
        tokenizer = ClientTokenizer(backend=load_tokenizer_file(source))
    else:
        checkpoint = open_checkpoint(source, with_tensors=False)
        tokenizer = _tokenizer(checkpoint)
        chat_template = checkpoint.chat_template
    if template is not None:
        chat_template = read_template(Path(template))
    elif source != path and chat_template is None:
        chat_template = open_checkpoint(path, with_tensors=False).chat_template
    return ModelFiles(path=path, tokenizer=tokenizer, chat_template=chat_template)


def _tokenizer(checkpoint: Checkpoint) -> ClientTokenizer:
    return ClientTokenizer(
        backend=checkpoint.load_tokenizer(), bos_token=checkpoint.bos_token, eos_token=checkpoint.eos_token
    )


def read_template(path: Path) -> str:
    """A chat template from a file of the operator's."""
    try:
        return read_text(path, MAX_TEMPLATE_BYTES)
    except ConfigError as error:
        raise ConfigError(
            f"the chat template cannot be read: {error.message}", remedy="pass --chat-template a text file"
        ) from None
