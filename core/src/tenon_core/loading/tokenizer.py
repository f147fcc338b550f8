"""Tokenizers: from tokenizer.json, or built from what a GGUF carries. Torch-free.

GGUF's "gpt2" vocabularies are byte-level BPE with merges and a named pre-tokenizer; "llama" ones are SentencePiece
BPE, whose merges follow from the scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tenon_platforms.errors import ConfigError

MAX_TOKEN_BYTES = 2**20
_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6
_SPACE = "\u2581"  # what SentencePiece writes for a space
_GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# GGUF pre-tokenizer -> (split expression, digits apart first)
_SPLITS: dict[str, tuple[str, bool]] = {
    "gpt-2": (_GPT2_SPLIT, False),
    "default": (_GPT2_SPLIT, False),
    "smollm": (_GPT2_SPLIT, True),
    "llama-bpe": (_LLAMA3_SPLIT, False),
    "llama3": (_LLAMA3_SPLIT, False),
    "qwen2": (_QWEN2_SPLIT, False),
    "qwen3": (_QWEN2_SPLIT, False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFacts:
    """What a vocabulary says of its special tokens. add_bos, add_eos: whether encoding a text adds them."""

    bos_token_id: int | None
    eos_token_id: int | None
    add_bos: bool
    add_eos: bool


def load_tokenizer_file(path: Path) -> Tokenizer:
    """A tokenizer.json. Raises `ConfigError` that names the file."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ConfigError(f"{path} is no valid tokenizer: {error}") from error


def build_gguf_tokenizer(metadata: Mapping[str, Any], where: str) -> Tokenizer:
    """The tokenizer a GGUF's metadata describes; `where` names the file in errors."""
    tokens = _tokens(metadata, where)
    model = metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        tokenizer = _byte_level(metadata, tokens, where)
    elif model == "llama":
        tokenizer = _sentencepiece(metadata, tokens, where)
    else:
        raise ConfigError(f"{where}: tokenizer model {model!r} is not supported: supported are gpt2 and llama")
    kinds = metadata.get("tokenizer.ggml.token_type") or []
    special = [
        AddedToken(tokens[index], special=kind == _CONTROL, normalized=False)
        for index, kind in enumerate(kinds[: len(tokens)])
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(special)
    _add_ends(tokenizer, gguf_facts(metadata), tokens)
    return tokenizer


def gguf_facts(metadata: Mapping[str, Any]) -> TokenizerFacts:
    """The special tokens a GGUF names."""
    spm = metadata.get("tokenizer.ggml.model") == "llama"
    return TokenizerFacts(
        bos_token_id=_id(metadata, "bos_token_id"),
        eos_token_id=_id(metadata, "eos_token_id"),
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", spm)),
        add_eos=bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
    )


def _tokens(metadata: Mapping[str, Any], where: str) -> list[str]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise ConfigError(f"{where} carries no tokenizer vocabulary")
    longest = max(len(token) for token in tokens)
    if longest > MAX_TOKEN_BYTES:
        raise ConfigError(f"{where}: a token of its vocabulary has {longest} characters")
    if len(set(tokens)) != len(tokens):
        raise ConfigError(f"{where}: its vocabulary names a token twice")
    return tokens


def _byte_level(metadata: Mapping[str, Any], tokens: list[str], where: str) -> Tokenizer:
    name = str(metadata.get("tokenizer.ggml.pre", "default"))
    if name not in _SPLITS:
        raise ConfigError(
            f"{where}: pre-tokenizer {name!r} is not supported: supported are {', '.join(_SPLITS)}",
            remedy="pass --tokenizer with a folder that has a tokenizer.json",
        )
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges") or []]
    if not all(len(merge) == 2 for merge in merges):
        raise ConfigError(f"{where}: its vocabulary has a merge of one part")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=False))
    except Exception as error:  # the library raises plain Exception
        raise ConfigError(f"{where}: its vocabulary and merges do not fit: {error}") from error
    expression, digits_apart = _SPLITS[name]
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if digits_apart else []
    steps.append(pre_tokenizers.Split(Regex(expression), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str], where: str) -> Tokenizer:
    scores = metadata.get("tokenizer.ggml.scores") or []
    if len(scores) < len(tokens):
        raise ConfigError(f"{where}: its vocabulary has {len(tokens)} tokens and {len(scores)} scores")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = _merges_from_scores(vocabulary, scores)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary, merges=merges, unk_token=_unknown(metadata, tokens), fuse_unk=True, byte_fallback=True
        )
    )
    prefixed = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    steps: list[Any] = [normalizers.Prepend(_SPACE)] if prefixed else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    ends: list[Any] = [decoders.Strip(" ", 1, 0)] if prefixed else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *ends]
    )
    return tokenizer


def _merges_from_scores(vocabulary: Mapping[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Every split of a token into two tokens is a merge; better-scored results merge first."""
    merges = []
    for token, index in vocabulary.items():
        splits = [
            (token[:place], token[place:])
            for place in range(1, len(token))
            if token[:place] in vocabulary and token[place:] in vocabulary
        ]
        splits.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        merges += [(scores[index], pair) for pair in splits]
    merges.sort(key=lambda scored: -scored[0])
    return [pair for _, pair in merges]


def _unknown(metadata: Mapping[str, Any], tokens: list[str]) -> str | None:
    index = _id(metadata, "unknown_token_id")
    return tokens[index] if index is not None and index < len(tokens) else None


def _add_ends(tokenizer: Tokenizer, facts: TokenizerFacts, tokens: list[str]) -> None:
    before = [facts.bos_token_id] if facts.add_bos and facts.bos_token_id is not None else []
    after = [facts.eos_token_id] if facts.add_eos and facts.eos_token_id is not None else []
    if not before and not after:
        return
    named = [(tokens[index], index) for index in dict.fromkeys((*before, *after))]
    single = [*(tokens[index] for index in before), "$A", *(tokens[index] for index in after)]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=named)


def _id(metadata: Mapping[str, Any], key: str) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{key}")
    count = len(metadata.get("tokenizer.ggml.tokens") or ())
    return value if isinstance(value, int) and 0 <= value < count else None
