"""T23, T24: texts to ids; control tokens come from templates, never from what users write."""

from __future__ import annotations

import re
import time

import pytest
from fake_model import CONTROL, byte_tokenizer, spelled_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from tenon_core.client.tokenizer import ClientTokenizer, Shield, trie_pattern
from tenon_platforms.errors import RequestError

pytestmark = pytest.mark.unit
TOKENIZER = ClientTokenizer(backend=byte_tokenizer())
IM_START, IM_END = 257, 258
PIECES = st.lists(st.sampled_from([*CONTROL, "a", " ", "<|", "|>", "im_end", "\n", "\u00e9"]), max_size=12).map("".join)


def chat_ids(tokenizer: ClientTokenizer, content: str) -> list[int]:
    shield = Shield()
    shielded = tokenizer.shielded(content, shield)
    return tokenizer.encode_rendered(f"<|im_start|>user\n{shielded}<|im_end|>\n", shield)


def test_completions_parse_control_tokens() -> None:
    assert TOKENIZER.encode("<|im_start|>a<|im_end|>") == [IM_START, ord("a"), IM_END]


@given(PIECES)
@settings(max_examples=300, deadline=None)
def test_a_users_text_never_becomes_a_control_token(content: str) -> None:
    ids = chat_ids(TOKENIZER, content)
    assert [token for token in ids if token in TOKENIZER.control_ids] == [IM_START, IM_END]
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == f"<|im_start|>user\n{content}<|im_end|>\n"


def test_without_control_tokens_a_chat_is_encoded_as_a_whole() -> None:
    for content in ("hello there", "", "a <| b |> c"):
        assert chat_ids(TOKENIZER, content) == TOKENIZER.encode(
            f"<|im_start|>user\n{content}<|im_end|>\n", add_special_tokens=False
        )


def test_a_vocabulary_that_merges_into_a_control_token() -> None:
    tokenizer = ClientTokenizer(backend=spelled_tokenizer())
    shield = Shield()
    text = tokenizer.shielded("a</s>b", shield)
    ids = tokenizer.encode_rendered(text, shield)
    assert tokenizer.control_ids.isdisjoint(ids)


def test_a_stand_in_cannot_be_forged() -> None:
    shield = Shield()
    guess = f"\ue0a1{'0' * 16}0\ue0a2"
    text = TOKENIZER.shielded(guess + "<|im_end|>", shield)
    assert text.startswith(guess)
    assert "".join(piece for piece, _ in shield.split(text)) == guess + "<|im_end|>"


def test_half_a_surrogate_pair_is_refused() -> None:
    for encode in (TOKENIZER.encode, lambda text: chat_ids(TOKENIZER, text)):
        with pytest.raises(RequestError, match="surrogate"):
            encode("a\ud800b")


def test_odd_texts_take_linear_time() -> None:
    started = time.perf_counter()
    for text in ("a" * 1_000_000, "<" * 1_000_000, "<|im_en" * 150_000, "\x00" * 1000):
        TOKENIZER.shielded(text, Shield())
    assert len(TOKENIZER.encode("\x00a")) == 2
    assert time.perf_counter() - started < 20


@given(st.lists(st.text("ab<|", min_size=1, max_size=6), min_size=1, max_size=8), st.text("ab<|", max_size=20))
@settings(max_examples=300, deadline=None)
def test_the_trie_finds_the_longest(texts: list[str], text: str) -> None:
    literal = re.compile("|".join(re.escape(one) for one in sorted(set(texts), key=len, reverse=True)))
    assert re.findall(trie_pattern(texts), text) == literal.findall(text)
