"""The least number of tokens of a text: never more than it has, whatever the tokenizer, near enough to be of use."""

from __future__ import annotations

import time

import pytest
from fake_model import byte_tokenizer, spelled_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tenon_core.client.detokenizer import byte_of_letter
from tenon_core.client.token_floor import CHUNK, least_tokens, measure_of
from tenon_core.client.tokenizer import ClientTokenizer
from tenon_core.sampling.pooling import PoolingFacts
from tenon_core.sampling.validate import ModelFacts
from tenon_platforms.errors import RequestError

pytestmark = pytest.mark.unit
CORPUS = [
    "the quick brown fox " * 9,
    "        " * 40,
    "==== ---- ####" * 20,
    "na\u00efve caf\u00e9 \u4f60\u597d \ud55c\uae00 " * 20,
]


def byte_pairs(form: normalizers.Normalizer | None = None) -> Tokenizer:
    """GPT-2's kind, with merges of words, spaces and signs; `<mask>` takes the spaces around it."""
    tokenizer = Tokenizer(models.BPE())
    if form is not None:
        tokenizer.normalizer = form
    split = pre_tokenizers.Split(Regex(r" ?\p{L}+|\s+|[^\s\p{L}]+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<mask>", special=True, lstrip=True, rstrip=True), AddedToken("\u00e9t\u00e9")])
    return tokenizer


def lossy() -> Tokenizer:
    """Byte-level, without a token for some bytes: they are left out."""
    vocabulary = {letter: byte for letter, byte in byte_of_letter().items() if byte not in b"k\xe4\xcc"}
    tokenizer = Tokenizer(models.BPE(vocab={**vocabulary, "wn": 256}, merges=[("w", "n")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    return tokenizer


def metaspace() -> Tokenizer:
    words = [f"<0x{byte:02X}>" for byte in range(256)] + ["\u2581", "a", "b", "ab", "\u2581ab", "\u2581\u2581"]
    merges = [("a", "b"), ("\u2581", "ab"), ("\u2581", "\u2581")]
    model = models.BPE(vocab={word: place for place, word in enumerate(words)}, merges=merges, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    return tokenizer


def word_pieces() -> Tokenizer:
    words = ["[UNK]", "[CLS]", "[SEP]", "a", "b", "##a", "##b", "ab", "the", "quick", ".", "!", "\u4f60"]
    model = models.WordPiece(vocab={word: place for place, word in enumerate(words)}, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return tokenizer


KNOWN = {
    "bytes": byte_tokenizer(),
    "byte pairs": byte_pairs(),
    "byte pairs in NFC": byte_pairs(normalizers.NFC()),
    "byte pairs in NFKD": byte_pairs(normalizers.NFKD()),
    "spelled": spelled_tokenizer(),
    "metaspace": metaspace(),
    "lossy": lossy(),
    "word pieces": word_pieces(),
}
PIECES = st.sampled_from(
    ["the quick", " brown", "a", "ab", " ", " " * 30, "\u00a0\u3000\u2003", "====", "#", ".", "!\x00a\x0bb", "x" * 120,
     "<mask>", "</s>", "[CLS]", "<|im_end|>", "\u00e9t\u00e9", "e\u0301te\u0301", "e", "\u0301\u0302\u0323", "\ud55c",
     "\u1100\u1161\u11a8", "\u4f60\u597d", "\uf900", "\ufb01", "\u2581", "\U0001f600", "\t\r\n", "<0x41>", ">\u0338",
     "\ufffd", "\u200d", "\u0130", "\u00df"]
)  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
@given(st.lists(st.one_of(PIECES, st.text(max_size=4)), max_size=30).map("".join), st.sampled_from([1, 1, 40]))
@settings(max_examples=200, deadline=None)
def test_never_more_than_there_are(name: str, text: str, times: int) -> None:
    measure = measure_of(KNOWN[name])
    assert measure is not None
    text = text.encode("utf-8", "ignore").decode() * times
    assert measure(text) <= len(KNOWN[name].encode(text, add_special_tokens=False).ids) + 1e-6


@pytest.mark.parametrize("name", KNOWN)
def test_long_texts_are_judged_by_their_parts(name: str) -> None:
    tokenizer, text = KNOWN[name], "ab the. quick <mask> brown e\u0301 \u4f60 fox " * 9000
    measure = measure_of(tokenizer)
    there, found = len(tokenizer.encode(text).ids), least_tokens(text, measure, 10**9)
    assert len(text) > 3 * CHUNK and there / 25 < found <= there
    assert 200 < least_tokens(text, measure, 200) < found


@pytest.mark.parametrize(
    "tokenizer",
    [
        Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0)),
        Tokenizer(models.BPE(vocab={"a": 0}, merges=[])),
        Tokenizer(models.WordLevel({"a": 0}, unk_token="a")),
    ],
)
def test_nothing_is_said_of_tokenizers_that_may_leave_characters_out(tokenizer: Tokenizer) -> None:
    assert measure_of(tokenizer) is None and least_tokens("a" * 10**6, measure_of(tokenizer), 10) == 0


def test_steps_that_take_characters_away_are_seen() -> None:
    for change in ("normalizer", "pre_tokenizer"):
        tokenizer = byte_pairs()
        if change == "normalizer":
            tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(" {2,}"), " ")])
        else:
            removal = pre_tokenizers.Split("=", "removed")
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([removal, pre_tokenizers.ByteLevel()])
        assert measure_of(tokenizer) is None


def facts(**more: object) -> ModelFacts:
    values = {"model": "x", "vocab_size": 500, "max_model_len": 100, "eos_token_ids": (), "max_num_seqs": 1, **more}
    return ModelFacts(**values)  # type: ignore[arg-type]


def test_a_text_far_too_long_is_refused_without_being_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = ClientTokenizer(backend=byte_pairs(normalizers.NFC()))
    monkeypatch.setattr("tenon_core.client.tokenizer.encoding_of", lambda *_, **__: pytest.fail("it was encoded"))
    text = "na\u00efve the quick " * 200_000
    begun = time.monotonic()
    with pytest.raises(RequestError, match=r"at least \d{3,4} tokens; the model's context is 100 and one") as caught:
        tokenizer.encode(text, facts=facts())
    assert caught.value.param == "prompt" and time.monotonic() - begun < 5
    pooling = facts(pooling=PoolingFacts(kind="pool", width=4, pooling="last"))
    with pytest.raises(RequestError, match="set truncate_prompt_tokens"):
        tokenizer.encode(text, facts=pooling)
    with pytest.raises(RequestError, match="in one step of at most 50"):
        tokenizer.encode("the " * 600, facts=facts(max_model_len=1000, max_prompt_len=50))


def test_a_text_that_fits_is_never_refused() -> None:
    tokenizer = ClientTokenizer(backend=byte_pairs())
    text = " " * 100_000 + "<mask>"  # one token
    assert len(tokenizer.encode(text, facts=facts())) == 1
