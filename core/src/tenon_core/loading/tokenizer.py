"""Tokenizers from tokenizer.json, checked for what would hurt later. Torch-free.

A file may carry regular expressions of its own, which run on every prompt: those that can take more than linear time
by repeating what repeats are refused, and so are vocabularies whose numbers clash.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tenon_platforms.errors import ConfigError

from .files import MIB, read_bounded
from .regex_checks import why_heavy

MAX_TOKENIZER_BYTES = 128 * MIB
MAX_TOKEN_ID = 1 << 24
MAX_TOKEN_CHARACTERS = 1 << 20


def load_tokenizer_file(path: Path) -> Tokenizer:
    """A tokenizer.json. Raises `ConfigError` that names the file."""
    content = read_bounded(path, MAX_TOKENIZER_BYTES)
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:
        raise ConfigError(f"{path} is no valid tokenizer: {str(error)[:400]}") from error
    check_vocabulary(tokenizer.get_vocab(with_added_tokens=True), str(path))
    for expression in _expressions(tokenizer):
        if why := why_heavy(expression):
            raise ConfigError(
                f"{path} holds the regular expression {expression!r:.200}, which {why}: some texts would take forever",
                remedy="pass --tokenizer with another tokenizer of the model",
            )
    return tokenizer


def check_vocabulary(vocabulary: dict[str, int], where: str) -> None:
    """Numbers must be those of tokens: each once, none absurd; texts must be of a token's length."""
    if not vocabulary:
        raise ConfigError(f"{where}: its vocabulary is empty")
    numbers = vocabulary.values()
    if min(numbers) < 0 or max(numbers) >= MAX_TOKEN_ID:
        wrong = min(numbers) if min(numbers) < 0 else max(numbers)
        raise ConfigError(f"{where}: a token has the number {wrong}: expected 0 to {MAX_TOKEN_ID - 1}")
    if len(set(numbers)) != len(vocabulary):
        raise ConfigError(f"{where}: two tokens of its vocabulary have the same number")
    longest = max(map(len, vocabulary))
    if longest > MAX_TOKEN_CHARACTERS:
        raise ConfigError(f"{where}: a token of its vocabulary has {longest} characters")


def _expressions(tokenizer: Tokenizer) -> Iterator[str]:
    """Every regular expression that runs on texts. Parts are looked at as the library writes them."""
    for part in (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder):
        if part is not None:
            yield from _regexes(json.loads(part.__getstate__()))


def _regexes(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("Regex"), str):
            yield value["Regex"]
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _regexes(one)
