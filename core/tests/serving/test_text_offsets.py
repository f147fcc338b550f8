"""`text_offset`: where a token stands in the choice's text, also where a character takes several or none is shown."""

from __future__ import annotations

import pytest
from fake_model import byte_tokenizer, spelled_tokenizer

from tenon_core.client.detokenizer import TokenBytes
from tenon_core.engine.messages import TokenLogprobs
from tenon_core.serving.logprobs import CompletionLogprobs, prompt_offsets

pytestmark = pytest.mark.unit
BYTES, SPELLED = TokenBytes(backend=byte_tokenizer()), TokenBytes(backend=spelled_tokenizer())
BOS, IM_END = 256, 258
TEXT = "h\u00e9\U0001f600!"  # 1 + 2 + 4 + 1 bytes, each a token


def offsets(vocabulary: TokenBytes, ids: list[int], **options: bool) -> list[int]:
    shape = CompletionLogprobs(vocabulary, 0, offset=10, **options)
    pieces = [shape.of([TokenLogprobs(token, 0.0, 1, (), ())])["text_offset"] for token in ids]
    return [offset for piece in pieces for offset in piece]


def test_characters_of_several_tokens() -> None:
    wanted = [0, 1, 1, 2, 2, 2, 2, 3]
    assert prompt_offsets(TEXT, list(TEXT.encode()), BYTES) == wanted
    assert offsets(BYTES, list(TEXT.encode())) == [10 + one for one in wanted]


def test_tokens_that_are_not_in_the_text() -> None:
    assert prompt_offsets("ab", [BOS, 97, 98], BYTES) == [0, 0, 1]  # put there by the tokenizer
    assert prompt_offsets("<|bos|>ab", [BOS, 97, 98], BYTES) == [0, 7, 8]  # spelled by the client
    assert offsets(BYTES, [97, IM_END, 98]) == [10, 11, 11]
    assert offsets(BYTES, [97, IM_END, 98], skip_special_tokens=False) == [10, 11, 21]


def test_a_first_space_that_the_tokenizer_put_there() -> None:
    ids = SPELLED.backend.encode("ab a\u00e9").ids
    assert [SPELLED.text(token) for token in ids] == [" a", "b", " a", "\ufffd", "\ufffd"]
    assert prompt_offsets("ab a\u00e9", ids, SPELLED) == [0, 1, 2, 4, 4]
    assert offsets(SPELLED, ids) == [10, 12, 13, 15, 15]


def test_a_text_that_the_tokenizer_writes_otherwise() -> None:
    assert prompt_offsets("AB c", list(b"ab c"), BYTES) == [0, 1, 2, 3]
    assert prompt_offsets("A", list(b"abc"), BYTES) == [0, 1, 1]
