"""Which tokenizer a model is served with: the operator's, where `--tokenizer` names one, else the model's own."""

from __future__ import annotations

from tokenizers import Tokenizer

from tenon_core.config import ModelConfig

from .checkpoint import Checkpoint, open_checkpoint
from .sources import resolve_model
from .tokenizer import load_tokenizer_file


def open_tokenizer(config: ModelConfig, checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer. Raises `ConfigError` where there is none, or it is damaged."""
    if config.tokenizer is None:
        return checkpoint.load_tokenizer()
    path = resolve_model(config.tokenizer, revision=config.revision, cache_dir=config.download_dir)
    if path.is_file() and path.suffix == ".json":
        return load_tokenizer_file(path)
    return open_checkpoint(path, with_tensors=False).load_tokenizer()
