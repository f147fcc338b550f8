"""Texts and pairs of texts as token ids for pooling: encoded, cut where that was asked for, checked.

[CLS] first text [SEP] second text [SEP]
      segment 0        segment 1 ...        segment_start: the first token of segment 1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenon_platforms.errors import RequestError

from .tokenizer import ClientTokenizer, check_text, encoding_of

if TYPE_CHECKING:
    from tokenizers import Encoding

    from tenon_core.sampling.validate import ModelFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingPrompt:
    """Token ids of one text or pair. segment_start: where the second text begins; 0: there is none."""

    ids: list[int]
    segment_start: int = 0


def encode_text(
    tokenizer: ClientTokenizer,
    text: str,
    facts: ModelFacts,
    *,
    keep: int | None = None,
    add_special_tokens: bool = True,
) -> PoolingPrompt:
    """One text. keep: tokens to keep of a longer one, the closing special tokens among them."""
    check_text(text)
    if keep is None:
        tokenizer.check_length(text, facts)
    found = encoding_of(tokenizer.backend, text, add_special_tokens=add_special_tokens)
    return PoolingPrompt(ids=_cut(found, keep))


def encode_pair(
    tokenizer: ClientTokenizer, first: str, second: str, facts: ModelFacts, *, keep: int | None = None
) -> PoolingPrompt:
    """Two texts as the tokenizer joins them; the second is cut where they are too long."""
    check_text(first, param="query")
    check_text(second, param="documents")
    if keep is None:
        tokenizer.check_length(second, facts)
    found = encoding_of(tokenizer.backend, first, second)
    ids, types = _cut(found, keep), found.type_ids
    start = types.index(1) if 1 in types else 0
    if keep is not None and len(found.ids) > keep and len(ids) <= len(tokenizer.encode(first)):
        raise RequestError(f"the first text alone has more than {keep} tokens: shorten it", param="query")
    return PoolingPrompt(ids=ids, segment_start=min(start, len(ids)))


def encode_pairs(
    tokenizer: ClientTokenizer, pairs: Sequence[tuple[str, str]], facts: ModelFacts, keeps: Callable[[str], int | None]
) -> list[PoolingPrompt]:
    """Pairs for a model. keeps: the tokens to keep of a pair, by its first text.

    A first text that is too long already is refused before it is joined with each of many others, which would cost
    its own encoding every time.
    """
    for first in dict.fromkeys(first for first, _ in pairs):
        check_text(first, param="query")
        longest = facts.max_model_len
        least = tokenizer.least_tokens(first, longest)
        count = least if least > longest else len(tokenizer.encode(first))
        if count > longest:
            has = f"at least {count}" if count == least else count
            raise RequestError(f"the first text has {has} tokens: the model's context is {longest}", param="query")
    return [encode_pair(tokenizer, first, second, facts, keep=keeps(first)) for first, second in pairs]


def cut_ids(ids: Sequence[int], keep: int | None) -> list[int]:
    """The first `keep` of token ids that were given as such."""
    return list(ids if keep is None else ids[:keep])


def tokens_to_keep(wanted: int | None, facts: ModelFacts) -> int | None:
    """What `truncate_prompt_tokens` means for a model: -1 is all that its context holds. Raises `RequestError`."""
    if wanted is None:
        return None
    longest = facts.max_model_len
    if facts.max_prompt_len:
        longest = min(longest, facts.max_prompt_len)
    if wanted > longest:
        raise RequestError(
            f"truncate_prompt_tokens is {wanted}: at most {longest} tokens are taken", param="truncate_prompt_tokens"
        )
    return longest if wanted < 0 else wanted


def _cut(found: Encoding, keep: int | None) -> list[int]:
    ids: list[int] = list(found.ids)
    if keep is None or len(ids) <= keep:
        return ids
    tail = 0
    while tail < min(keep, len(ids)) and found.special_tokens_mask[-1 - tail]:
        tail += 1
    return ids[: keep - tail] + (ids[-tail:] if tail else [])
