"""The tokenizer that a GGUF's metadata describes. Torch-free.

"gpt2" vocabularies are byte-level BPE with merges and a named way of splitting texts first; "llama" ones are
SentencePiece BPE, whose merges follow from the scores (Gemma's: from the order of the tokens).
Sources: llama.cpp's llama-vocab.cpp for what the names mean; the models' own tokenizer.json for their steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tenon_platforms.errors import ConfigError

MAX_TOKEN_CHARACTERS = 1 << 20
MAX_SPLIT_WORK = 1 << 28  # characters copied while merges are derived from scores
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_SPACE = "\u2581"  # what SentencePiece writes for a space
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _Split:
    """How texts are cut before merging. digits_apart: each digit alone, first. whole_words: a word that is a token is
    taken without merging."""

    expression: str
    digits_apart: bool = False
    whole_words: bool = False


# SmolLM2's own tokenizer.json has the Digits step, and so has llama.cpp's "smollm". Transformers' GGUF path leaves it
# out, which tokenizes " 3" as one token; tests compare with the model's definition.
_SPLITS: dict[str, _Split] = {
    "default": _Split(_GPT2),
    "gpt-2": _Split(_GPT2),
    "smollm": _Split(_GPT2, digits_apart=True),
    "llama-bpe": _Split(_LLAMA3, whole_words=True),
    "llama3": _Split(_LLAMA3, whole_words=True),
    "llama-v3": _Split(_LLAMA3, whole_words=True),
    "tekken": _Split(_TEKKEN, whole_words=True),
    "qwen2": _Split(_QWEN2),
    "qwen3": _Split(_QWEN2),
    "deepseek-r1-qwen": _Split(_QWEN2),
}


@dataclass(slots=True, kw_only=True)
class _Vocabulary:
    """The checked token table. scores: of SentencePiece only."""

    tokens: list[str]
    kinds: list[int]
    merges: list[tuple[str, str]]
    scores: list[float]


class GGUFTokenizer:
    """A GGUF's token table and special tokens; `build` makes the tokenizer. `where` names the file in errors.

    bos_token_id, eos_token_id: or None. end_ids: every token that ends an answer. Raises `ConfigError` for numbers
    that are no token's.
    """

    def __init__(self, metadata: Mapping[str, Any], where: str) -> None:
        self._metadata = metadata
        self._where = where
        self._tokens: list[Any] = self._list("tokens")
        self.bos_token_id = self._id("bos_token_id")
        self.eos_token_id = self._id("eos_token_id")
        ends = (self.eos_token_id, self._id("eot_token_id"), self._id("eom_token_id"))
        self.end_ids = tuple(dict.fromkeys(end for end in ends if end is not None))
        is_spm = metadata.get("tokenizer.ggml.model") == "llama"
        self.add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", is_spm))
        self.add_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", False))

    def text_of(self, index: int | None) -> str | None:
        """A token's text."""
        return None if index is None else str(self._tokens[index])

    def build(self) -> Tokenizer:
        """The tokenizer. Raises `ConfigError` where the table is damaged or its kind is not known."""
        kind = self._metadata.get("tokenizer.ggml.model")
        if kind not in ("gpt2", "llama"):
            raise self._wrong(
                f"tokenizer model {kind!r:.80} is not supported: supported are gpt2 and llama",
                remedy="pass --tokenizer with a folder that has a tokenizer.json",
            )
        vocabulary = self._vocabulary()
        tokenizer = self._byte_level(vocabulary) if kind == "gpt2" else self._sentencepiece(vocabulary)
        tokenizer.add_tokens(list(self._added(vocabulary)))
        self._add_ends(tokenizer)
        return tokenizer

    def _list(self, key: str) -> list[Any]:
        value = self._metadata.get(f"tokenizer.ggml.{key}", [])
        if not isinstance(value, list):
            raise self._wrong(f"its {key} are no list")
        return value

    def _id(self, key: str) -> int | None:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(self._tokens):
            raise self._wrong(f"tokenizer.ggml.{key} is {value!r:.80}, but there are {len(self._tokens)} tokens")
        return value

    def _vocabulary(self) -> _Vocabulary:
        tokens, kinds, scores = self._tokens, self._list("token_type"), self._list("scores")
        if not tokens or not all(isinstance(token, str) for token in tokens):
            raise self._wrong("it carries no vocabulary of texts")
        if (longest := max(map(len, tokens))) > MAX_TOKEN_CHARACTERS:
            raise self._wrong(f"a token of its vocabulary has {longest} characters")
        if str(self._metadata.get("general.architecture")).startswith("gemma"):  # these write runs of spaces as such
            tokens = [_SPACE * len(token) if token.strip(" ") == "" and len(token) > 1 else token for token in tokens]
        if len(set(tokens)) != len(tokens):
            raise self._wrong("its vocabulary names a token twice")
        if kinds and (len(kinds) != len(tokens) or not all(isinstance(kind, int) for kind in kinds)):
            raise self._wrong(f"its vocabulary has {len(tokens)} tokens and {len(kinds)} kinds of tokens")
        if not all(isinstance(score, float) and math.isfinite(score) for score in scores):
            raise self._wrong("a score of its vocabulary is no number")
        merges = self._list("merges")
        pairs = [tuple(merge.split(" ", 1)) for merge in merges if isinstance(merge, str)]
        if len(pairs) != len(merges) or not all(len(pair) == 2 for pair in pairs):
            raise self._wrong("a merge of its vocabulary is no pair of texts")
        return _Vocabulary(tokens=tokens, kinds=kinds, merges=[(pair[0], pair[1]) for pair in pairs], scores=scores)

    def _byte_level(self, vocabulary: _Vocabulary) -> Tokenizer:
        name = str(self._metadata.get("tokenizer.ggml.pre", "default"))
        if name not in _SPLITS:
            raise self._wrong(
                f"pre-tokenizer {name!r:.80} is not supported: supported are {', '.join(_SPLITS)}",
                remedy="pass --tokenizer with a folder that has a tokenizer.json",
            )
        split = _SPLITS[name]
        tokenizer = self._bpe(vocabulary.tokens, vocabulary.merges, ignore_merges=split.whole_words)
        steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if split.digits_apart else []
        steps.append(pre_tokenizers.Split(Regex(split.expression), behavior="isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def _sentencepiece(self, vocabulary: _Vocabulary) -> Tokenizer:
        tokens = vocabulary.tokens
        if len(vocabulary.scores) != len(tokens):
            raise self._wrong(f"its vocabulary has {len(tokens)} tokens and {len(vocabulary.scores)} scores")
        if sum(len(token) ** 2 for token in tokens) > MAX_SPLIT_WORK:
            raise self._wrong("the tokens of its vocabulary are too long")
        unknown = self._id("unknown_token_id")
        by_order = str(self._metadata.get("general.architecture")).startswith("gemma")
        ranks = [-float(index) for index in range(len(tokens))] if by_order else vocabulary.scores
        tokenizer = self._bpe(
            tokens,
            vocabulary.merges or merges_from_ranks(tokens, ranks),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
        prefixed = bool(self._metadata.get("tokenizer.ggml.add_space_prefix", True))
        steps: list[Any] = [normalizers.Prepend(_SPACE)] if prefixed else []
        tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
        ends: list[Any] = [decoders.Strip(" ", 1, 0)] if prefixed else []
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *ends]
        )
        return tokenizer

    def _bpe(self, tokens: list[str], merges: list[tuple[str, str]], **options: Any) -> Tokenizer:
        numbers = {token: index for index, token in enumerate(tokens)}
        try:
            return Tokenizer(models.BPE(vocab=numbers, merges=merges, **options))
        except Exception as error:
            raise self._wrong(f"its vocabulary and merges do not fit: {str(error)[:400]}") from error

    def _added(self, vocabulary: _Vocabulary) -> Iterator[AddedToken]:
        """Tokens found whole in a text before anything else. Special: those that decoding may leave out."""
        named = {self.bos_token_id, *self.end_ids}
        for index, token in enumerate(vocabulary.tokens):
            kind = vocabulary.kinds[index] if vocabulary.kinds else 0
            if token and (kind in (_UNKNOWN, _CONTROL, _USER_DEFINED) or index in named):
                is_special = kind != _USER_DEFINED or index in named
                yield AddedToken(token, special=is_special, normalized=False)

    def _add_ends(self, tokenizer: Tokenizer) -> None:
        before = [self.bos_token_id] if self.add_bos and self.bos_token_id is not None else []
        after = [self.eos_token_id] if self.add_eos and self.eos_token_id is not None else []
        if not before and not after:
            return
        named = [(self._tokens[index], index) for index in dict.fromkeys((*before, *after))]
        single = [*(self._tokens[index] for index in before), "$A", *(self._tokens[index] for index in after)]
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=named)

    def _wrong(self, why: str, *, remedy: str | None = None) -> ConfigError:
        return ConfigError(f"{self._where}: {why}", remedy=remedy)


def merges_from_ranks(tokens: list[str], ranks: list[float]) -> list[tuple[str, str]]:
    """Every split of a token into two tokens is a merge; better-ranked results merge first.

    Among equals longer left parts, then longer right parts; then by the parts' numbers, as Transformers orders them.
    """
    numbers = {token: index for index, token in enumerate(tokens)}
    merges: list[tuple[float, int, int, tuple[str, str]]] = []
    for token, rank in zip(tokens, ranks, strict=True):
        splits = [
            (token[:place], token[place:])
            for place in range(1, len(token))
            if token[:place] in numbers and token[place:] in numbers
        ]
        splits.sort(key=lambda pair: (numbers[pair[0]], numbers[pair[1]]))
        merges += [(rank, len(left), len(right), (left, right)) for left, right in splits]
    merges.sort(key=lambda merge: merge[:3], reverse=True)
    return [merge[3] for merge in merges]
