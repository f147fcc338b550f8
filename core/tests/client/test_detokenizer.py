"""Detokenizing: pushes give what decoding whole gives, and nothing broken on the way."""

from __future__ import annotations

import pytest
from fake_model import byte_tokenizer, spelled_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from tenon_core.client.detokenizer import TokenBytes, WindowDetokenizer

pytestmark = pytest.mark.unit
BYTES = TokenBytes(backend=byte_tokenizer())
SPELLED = TokenBytes(backend=spelled_tokenizer())


def pushed(vocabulary: TokenBytes, ids: list[int], *, skip: bool = True) -> list[str]:
    detokenizer = vocabulary.detokenizer(skip_special_tokens=skip)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


def test_the_kinds_are_told_apart() -> None:
    assert BYTES.is_byte_level
    assert not SPELLED.is_byte_level


@given(st.lists(st.integers(0, 259), max_size=60), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_bytes_give_the_text_of_the_whole(ids: list[int], skip: bool) -> None:
    assert "".join(pushed(BYTES, ids, skip=skip)) == BYTES.backend.decode(ids, skip_special_tokens=skip)


@given(st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_no_half_character_is_shown(text: str) -> None:
    for vocabulary in (BYTES, SPELLED):
        ids = vocabulary.backend.encode(text, add_special_tokens=False).ids
        pieces = pushed(vocabulary, ids)
        assert "".join(pieces) == vocabulary.backend.decode(ids)
        if "\ufffd" not in text:
            assert not any("\ufffd" in piece for piece in pieces)


# Words, and characters spelled in bytes. (A run of bytes that is no UTF-8 is decoded differently by its very end, which
# no stream can know before.)
SPELLINGS = st.lists(
    st.one_of(
        st.integers(257, 270).map(lambda word: [word]),
        st.characters(codec="utf-8").map(lambda letter: [1 + byte for byte in letter.encode()]),
    ),
    max_size=30,
).map(lambda parts: [token for part in parts for token in part])


@given(SPELLINGS)
@settings(max_examples=300, deadline=None)
def test_the_window_gives_the_text_of_the_whole(ids: list[int]) -> None:
    assert "".join(pushed(SPELLED, ids)) == SPELLED.backend.decode(ids)


@pytest.mark.parametrize("cut", range(1, 5))
def test_an_answer_goes_on_from_its_prompt(cut: int) -> None:
    """A first word's space belongs to the text, unless the text begins there."""
    text = "ab a b ab a"
    ids = SPELLED.backend.encode(text).ids
    prompt, answer = ids[:cut], ids[cut:]
    detokenizer = SPELLED.detokenizer(before=prompt)
    said = "".join([*(detokenizer.push(token) for token in answer), detokenizer.flush()])
    assert SPELLED.backend.decode(prompt) + said == text
    plain = BYTES.detokenizer(before=[97])
    assert plain.push(98) + plain.flush() == "b"


def test_half_a_character_before_an_answer_does_not_hurt_it() -> None:
    half = SPELLED.detokenizer(before=[258, 1 + 0xC3])
    assert half.push(1 + 0xA9) + half.push(259) + half.flush() == "\ufffdb"


def test_the_window_does_not_grow() -> None:
    detokenizer = SPELLED.detokenizer()
    assert isinstance(detokenizer, WindowDetokenizer)
    for _ in range(1000):
        detokenizer.push(1 + 0xC3)  # a byte that begins a character which never ends
        assert len(detokenizer._ids) <= 130
    for _ in range(1000):
        detokenizer.push(258)
        assert len(detokenizer._ids) <= 130


def test_ids_without_a_token_are_nothing() -> None:
    assert BYTES.of(10_000) == b""
    assert "".join(pushed(BYTES, [72, 10_000, 105])) == "Hi"
