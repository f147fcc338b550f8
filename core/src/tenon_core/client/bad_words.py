"""Bad words as tokens: whoever has the tokenizer fills them in, before the request goes on."""

from __future__ import annotations

import msgspec

from tenon_core.sampling.params import SamplingParams

from .tokenizer import ClientTokenizer, check_text


def with_bad_words(params: SamplingParams, tokenizer: ClientTokenizer) -> SamplingParams:
    """The parameters with their bad words' tokens: of each word as it begins a text, and as it follows a space.

    Raises `RequestError` for a word that is no Unicode text.
    """
    if not params.bad_words:
        return params
    found: dict[tuple[int, ...], None] = {}
    for word in params.bad_words:
        check_text(word, param="bad_words")
        for text in (word.lstrip(), f" {word.lstrip()}"):
            ids = tuple(tokenizer.encode(text, add_special_tokens=False))
            if ids:
                found[ids] = None
    return msgspec.structs.replace(params, bad_word_ids=tuple(found))
