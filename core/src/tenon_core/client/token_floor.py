"""How many tokens a text has at the least, told from its bytes: milliseconds a megabyte, where encoding takes seconds.

Every byte of a text is covered by some token. Let a byte weigh 1 / (bytes of the longest token that it occurs in): the
bytes of a token of n bytes weigh at most n * 1/n = 1 together, so a text has at least as many tokens as it weighs. This
holds where a tokenizer leaves nothing out: byte-level BPE, and BPE whose unknown characters become bytes. A WordPiece
tokenizer makes one token of any unknown word, so there its words and signs are counted. Of other tokenizers nothing is
said (0): Unigram makes one token of many unknown characters.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models

from .detokenizer import byte_of_letter

Measure = Callable[[str], float]
CHUNK = 1 << 16  # characters looked at in one go
SEAM = 16  # bytes that may join across two chunks, each of weight 1 at most
_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
_KEEP_ALL = ("Split", "Digits", "ByteLevel", "Metaspace", "Punctuation")  # pre-tokenizers, unless they say "Removed"
_SPACE, _SIGN, _WORD = 1, 2, 3


def least_tokens(text: str, measure: Measure | None, enough: int) -> int:
    """Tokens that the text has at the least; counted no further than beyond `enough`."""
    total = 0.0
    if measure is None:
        return 0
    for start in range(0, len(text), CHUNK):
        total += max(measure(text[start : start + CHUNK]) - SEAM, 0.0)
        if total > enough:
            break
    return int(total)


def measure_of(backend: Tokenizer) -> Measure | None:
    """What gives the least number of tokens of a text without lone surrogates; None: nothing is known."""
    normalizers, splitters = _parts(backend.normalizer), _parts(backend.pre_tokenizer)
    if isinstance(backend.model, models.WordPiece):
        return _word_pieces(backend, normalizers, splitters)
    if isinstance(backend.model, models.BPE):
        return _byte_pairs(backend, normalizers, splitters)
    return None


def _parts(component: Any) -> list[dict[str, Any]]:
    """A normalizer's or pre-tokenizer's steps, as tokenizer.json writes them."""
    if component is None:
        return []
    found: dict[str, Any] = json.loads(component.__getstate__())
    return _flat(found)


def _flat(step: dict[str, Any]) -> list[dict[str, Any]]:
    inner = step.get("normalizers", step.get("pretokenizers"))
    return [step] if inner is None else [leaf for one in inner for leaf in _flat(one)]


def _byte_pairs(
    backend: Tokenizer, normalizers: Sequence[Mapping[str, Any]], splitters: Sequence[Mapping[str, Any]]
) -> Measure | None:
    model = backend.model
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    if any(one["type"] not in _KEEP_ALL or one.get("behavior") == "Removed" for one in splitters):
        return None
    vocabulary = backend.get_vocab(with_added_tokens=False)
    if any(one["type"] == "ByteLevel" for one in splitters):
        letters = byte_of_letter()
        lost = [byte for letter, byte in letters.items() if letter not in vocabulary]  # left out, or one unknown token
        tokens = (bytes(letters[one] for one in token if one in letters) for token in vocabulary)
    elif model.byte_fallback and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
        lost = []
        tokens = (token.encode("utf-8", "replace") for token in vocabulary)
    else:
        return None
    added = list(backend.get_added_tokens_decoder().values())
    written = _written(normalizers, splitters, drops_space=any(token.lstrip or token.rstrip for token in added))
    if written is None:
        return None
    contents = {form for token in added for form in (token.content, *written(token.content))}
    weights = _weights([*tokens, *(text.encode() for text in contents)])
    weights[lost] = 0
    return lambda text: min(_weight(form, weights) for form in written(text))


def _written(
    normalizers: Iterable[Mapping[str, Any]], splitters: Iterable[Mapping[str, Any]], *, drops_space: bool
) -> Callable[[str], tuple[str, ...]] | None:
    """A text as the model sees it, both with and without Unicode normal forms: added tokens are found in either.

    drops_space: without white space, of which any amount may belong to an added token.
    """
    swaps: list[tuple[str, str]] = []
    forms: list[str] = []
    for one in normalizers:
        if one["type"] in _FORMS:
            forms.append(one["type"])
        elif one["type"] == "Replace" and len(one["pattern"].get("String", "")) == 1 and one["content"]:
            swaps.append((one["pattern"]["String"], one["content"]))
        elif one["type"] != "Prepend":
            return None
    swaps += [(" ", one["replacement"]) for one in splitters if one["type"] == "Metaspace"]
    if forms and swaps:
        return None  # their order would matter

    def bare(text: str) -> str:
        return "".join(text.split()) if drops_space else text

    def written(text: str) -> tuple[str, ...]:
        found = bare(text)
        for old, new in swaps:
            found = found.replace(old, new)
        if not forms or text.isascii():
            return (found,)
        for form in forms:
            text = unicodedata.normalize(form, text)  # type: ignore[arg-type]
        return (found, bare(text))

    return written


def _weights(tokens: Iterable[bytes]) -> npt.NDArray[np.float64]:
    """Of each byte, 1 / (length of the longest token with it)."""
    weights, left = np.ones(256), set(range(256))
    for token in sorted(tokens, key=len, reverse=True):
        for byte in left.intersection(token):
            weights[byte] = 1 / len(token)
            left.remove(byte)
        if not left:
            break
    return weights


def _weight(text: str, weights: npt.NDArray[np.float64]) -> float:
    data = np.frombuffer(text.encode(), np.uint8)
    return float(np.bincount(data, minlength=256) @ weights)


def _word_pieces(
    backend: Tokenizer, normalizers: Sequence[Mapping[str, Any]], splitters: Sequence[Mapping[str, Any]]
) -> Measure | None:
    """BERT's: a word that follows white space or an ASCII sign is a token or more, and so is every such sign."""
    if [one["type"] for one in splitters] != ["BertPreTokenizer"]:
        return None
    if any(one["type"] not in ("BertNormalizer", "Lowercase") for one in normalizers):
        return None
    kinds = np.zeros(256, np.uint8)
    kinds[list(b" \t\n\r")] = _SPACE
    kinds[[byte for byte in range(33, 127) if not chr(byte).isalnum()]] = _SIGN
    kinds[[byte for byte in range(128) if chr(byte).isalnum()]] = _WORD
    if any(one.get("handle_chinese_chars") for one in normalizers):
        kinds[0xE5:0xE9] = _SIGN  # the first bytes of U+5000 to U+8FFF, each of which stands alone

    def pieces(text: str) -> int:
        found = kinds[np.frombuffer(text.encode(), np.uint8)]
        splits = (found == _SPACE) | (found == _SIGN)
        return int(np.count_nonzero(found == _SIGN) + np.count_nonzero((found[1:] == _WORD) & splits[:-1]))

    most = max([1, *(pieces(f" {one.content}") for one in backend.get_added_tokens_decoder().values())])
    return lambda text: pieces(text) / most
