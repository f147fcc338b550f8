"""T23, T24: texts to ids; control tokens come from templates, never from what users write."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_model import CONTROL, byte_tokenizer, spelled_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from tenon_core.client import pairs
from tenon_core.client import tokenizer as tokenizer_module
from tenon_core.client.conversation import Conversation
from tenon_core.client.pairs import PoolingPrompt, encode_pair
from tenon_core.client.tokenizer import VERY_LONG_TEXT, ClientTokenizer, Shield, encoding_of, trie_pattern
from tenon_core.sampling.validate import ModelFacts
from tenon_platforms.errors import RequestError

pytestmark = pytest.mark.unit
TOKENIZER = ClientTokenizer(backend=byte_tokenizer())
IM_START, IM_END = 257, 258
PIECES = st.lists(st.sampled_from([*CONTROL, "a", " ", "<|", "|>", "im_end", "\n", "\u00e9"]), max_size=12).map("".join)


def facts_of(longest: int) -> ModelFacts:
    return ModelFacts(model="x", vocab_size=270, max_model_len=longest, eos_token_ids=(), max_num_seqs=1)


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


@pytest.mark.parametrize("work", ["encode", "pair", "chat", "decode"])
def test_long_texts_leave_the_lock_to_other_threads(work: str) -> None:
    """In a thread, as the event loop has it done: it must not stand still the while."""
    text = "ab " * 300_000
    shield = Shield()
    shielded = TOKENIZER.shielded(text + CONTROL[0], shield)
    todo: dict[str, Callable[[], object]] = {
        "encode": lambda: TOKENIZER.encode(text),
        "pair": lambda: encode_pair(TOKENIZER, text, "b", facts_of(2**20)),
        "chat": lambda: TOKENIZER.encode_rendered(shielded, shield),
        "decode": lambda: TOKENIZER.decode([5] * 1_000_000),
    }
    thread = threading.Thread(target=todo[work])
    begun = last = time.monotonic()
    longest = 0.0
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    assert longest < 0.6 * (last - begun), f"stood still for {longest:.2f} of {last - begun:.2f} s"


def test_long_texts_are_encoded_as_short_ones_are() -> None:
    for text, second in (("ab" * 2000, None), ("ab" * 2000, "cd" * 9), ("a", "b" * 3000)):
        found, wanted = encoding_of(TOKENIZER.backend, text, second), TOKENIZER.backend.encode(text, second)
        assert (found.ids, found.type_ids) == (wanted.ids, wanted.type_ids)
        assert found.special_tokens_mask == wanted.special_tokens_mask
    ids = TOKENIZER.encode("ab c" * 2000)
    assert TOKENIZER.decode(ids) == TOKENIZER.backend.decode(ids) == "ab c" * 2000


def test_a_first_text_that_is_too_long_is_not_joined_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[str] = []

    def counted(
        tokenizer: ClientTokenizer, first: str, second: str, facts: ModelFacts, *, keep: int | None = None
    ) -> PoolingPrompt:
        joined.append(second)
        return encode_pair(tokenizer, first, second, facts, keep=keep)

    monkeypatch.setattr(pairs, "encode_pair", counted)
    with pytest.raises(RequestError, match="the first text has 101 tokens") as caught:
        pairs.encode_pairs(TOKENIZER, [("q" * 101, "d")] * 500, facts_of(100), lambda _: None)
    assert caught.value.param == "query" and not joined
    found = pairs.encode_pairs(TOKENIZER, [("q" * 100, "d"), ("q", "e")], facts_of(100), lambda _: None)
    assert [one.ids for one in found] == [TOKENIZER.backend.encode("q" * 100, "d").ids, TOKENIZER.encode("qe")]


def test_texts_that_nothing_bounds_leave_threads_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of them are under way: chats are rendered and encoded in those threads."""
    tokenizer = ClientTokenizer(backend=byte_tokenizer())
    conversation = Conversation(tokenizer=tokenizer)
    gate = threading.Event()
    monkeypatch.setattr(
        tokenizer_module, "encoding_of", lambda *_, **__: gate.wait(20) and TOKENIZER.backend.encode("")
    )
    monkeypatch.setattr(Conversation, "_prepare", lambda *_: (Rendered(), [], Shield()))
    text = "a" * (VERY_LONG_TEXT + 1)

    async def all_of() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        tasks = [asyncio.ensure_future(tokenizer.encode_async(text)) for _ in range(4)]
        chat = conversation.encode_async([], add_generation_prompt=True, variables={})
        tasks += [asyncio.ensure_future(chat)]
        await asyncio.sleep(0.2)
        try:
            assert await asyncio.wait_for(asyncio.to_thread(lambda: 5), 10) == 5
        finally:
            gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(all_of())


class Rendered:
    """A template whose text nothing bounds."""

    async def render_async(self, given: object, **variables: object) -> str:
        return "a" * (VERY_LONG_TEXT + 1)
