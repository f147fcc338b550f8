"""Tokenizers: equal to the model's own definition, hostile ones refused (attack case T15), time linear in the text."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tenon_core.loading.checkpoint import open_checkpoint
from tenon_core.loading.gguf_tokenizer import _SPLITS, GGUFTokenizer, merges_from_ranks
from tenon_core.loading.regex_checks import why_heavy
from tenon_core.loading.tokenizer import load_tokenizer_file
from tenon_platforms.errors import ConfigError

BASE = [
    "Hello world", "  two  spaces", "1234 5678", "a1b2", "don't I'll we've", "\n\n\tTabs\r\n",
    "\u00e9\u00e8\u00fc\u00df",
    "\u4f60\u597d\u4e16\u754c", "\U0001f600\U0001f680 emoji", "def f(x):\n    return x**2",
    "<|im_start|>user\nHi<|im_end|>\n", "<|endoftext|>x", "", "   ", "a", "\u0000", "\u200b\u200d", "3.14159e-10",
    "https://x.y/z?a=1&b=2", "UPPER lower MiXeD", "\u0627\u0644\u0639", "\u0e44\u0e17\u0e22", "\u00bd\u2153\u2460",
    "x" * 300, "\u0662\u0663", "\ufb01", "e\u0301", "'S 'T", "!!!???...", "  \n  \n x", "<file_sep>a<reponame>",
    "\u00a0nbsp",
]  # fmt: skip
STRINGS = BASE + [f"{a} {b}" for a, b in zip(BASE, BASE[7:] + BASE[:7], strict=True)]


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> tuple[Tokenizer, Any]:
    """Ours, and Transformers' from the same file.

    Transformers' GGUF path knows no "smollm" pre-tokenizer and leaves out the step that cuts digits apart, so " 3"
    would be one token. The model's own tokenizer.json says Digits, then ByteLevel: that is put back here.
    """
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(smollm2_path.parent), gguf_file=smollm2_path.name)
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return open_checkpoint(smollm2_path).load_tokenizer(), theirs


@pytest.mark.e2e
@pytest.mark.parametrize("text", STRINGS, ids=range(len(STRINGS)))
def test_smollm2_encodes_and_decodes_as_transformers(text: str, smollm2: tuple[Tokenizer, Any]) -> None:
    ours, theirs = smollm2
    expected = theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.encode(text, add_special_tokens=False).ids == expected
    assert ours.encode(text).ids == theirs(text)["input_ids"]  # it adds neither a begin nor an end
    assert ours.decode(expected, skip_special_tokens=False) == text == theirs.decode(expected)


@pytest.mark.e2e
def test_smollm2_special_tokens(smollm2_path: Path) -> None:
    opened = open_checkpoint(smollm2_path)
    assert (opened.bos_token, opened.eos_token, opened.eos_token_ids) == ("<|im_start|>", "<|im_end|>", (2,))
    assert opened.chat_template is not None and "<|im_start|>" in opened.chat_template
    tokenizer = opened.load_tokenizer()
    assert tokenizer.get_vocab_size() == 49152
    assert tokenizer.decode([1, 504, 2]) == "The"


@pytest.mark.e2e
def test_opening_and_tokenizing_are_quick(smollm2_path: Path) -> None:
    start = time.process_time()
    opened = open_checkpoint(smollm2_path)
    assert time.process_time() - start < 3  # 0.06 s: ten times and more of slack
    start = time.process_time()
    opened.load_tokenizer()
    assert time.process_time() - start < 3


def metadata(tokens: list[str], /, **changes: Any) -> dict[str, Any]:
    """A GGUF's tokenizer keys; changes: without their prefix, None leaves one out."""
    named = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [1] * len(tokens),
        "merges": [],
        **changes,
    }
    found = {f"tokenizer.ggml.{key}": value for key, value in named.items() if value is not None}
    return {"general.architecture": "llama", **found}


def build(tokens: list[str], /, **changes: Any) -> Tokenizer:
    return GGUFTokenizer(metadata(tokens, **changes), "m.gguf").build()


BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


@pytest.mark.unit
@pytest.mark.parametrize("name", sorted(_SPLITS))
def test_texts_are_split_as_named(name: str) -> None:
    tokenizer = build(BYTES, pre=name)
    pieces = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("It's  12345 x\n\ny")]
    numbers = [piece for piece in pieces if any(letter.isdigit() for letter in piece)]
    expected = {
        "gpt-2": ["\u012012345"],
        "default": ["\u012012345"],
        "llama-bpe": ["123", "45"],
        "llama3": ["123", "45"],
        "llama-v3": ["123", "45"],
    }
    assert numbers == expected.get(name, ["1", "2", "3", "4", "5"])
    assert tokenizer.decode(tokenizer.encode("It's  12345 x\n\ny \u00e9").ids) == "It's  12345 x\n\ny \u00e9"


@pytest.mark.unit
def test_llama3_takes_whole_words() -> None:
    tokens = [*BYTES, "abc"]  # no merges lead to it
    assert build(tokens, pre="llama-bpe").encode("abc").tokens == ["abc"]
    assert build(tokens, pre="gpt-2").encode("abc").tokens == ["a", "b", "c"]


@pytest.mark.unit
def test_begin_end_control_and_user_tokens() -> None:
    tokens, kinds = [*BYTES, "<s>", "</s>", "<think>", "<end>"], [1] * len(BYTES) + [3, 3, 4, 1]
    first = len(BYTES)
    ends = {"bos_token_id": first, "eos_token_id": first + 1, "eot_token_id": first + 3}
    table = GGUFTokenizer(metadata(tokens, token_type=kinds, **ends, add_bos_token=True, add_eos_token=True), "m")
    assert table.end_ids == (first + 1, first + 3)
    tokenizer = table.build()
    assert tokenizer.encode("a<think><end>").ids == [first, tokens.index("a"), first + 2, first + 3, first + 1]
    assert tokenizer.encode("a", add_special_tokens=False).ids == [tokens.index("a")]
    assert tokenizer.decode([first, tokens.index("a"), first + 2, first + 3]) == "a<think>"
    assert not build(tokens, token_type=kinds, **ends).encode("").ids  # a byte-level table adds none unless told


SPM = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    "\u2581",
    "a",
    "b",
    "c",
    "ab",
    "\u2581a",
    "abc",
]
SPM_KINDS = [2, 3, 3, *([6] * 256), *([1] * 7)]


def spm(**changes: Any) -> dict[str, Any]:
    scores = [0.0] * 259 + [-9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0]
    ends = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return metadata(
        SPM, **{"model": "llama", "pre": None, "token_type": SPM_KINDS, "scores": scores, **ends, **changes}
    )


@pytest.mark.unit
def test_sentencepiece_merges_by_score_and_falls_back_to_bytes() -> None:
    tokenizer = GGUFTokenizer(spm(), "m").build()
    assert tokenizer.encode("ab").tokens == ["<s>", "\u2581a", "b"]  # the better score first, though it leaves b alone
    assert tokenizer.encode("c abc").tokens == ["<s>", "\u2581", "c", "\u2581a", "b", "c"]
    assert tokenizer.encode("\u00e9", add_special_tokens=False).tokens == ["\u2581", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("abc \u00e9\u4f60 ab").ids) == "abc \u00e9\u4f60 ab"
    bare = GGUFTokenizer(spm(add_space_prefix=False, add_bos_token=False), "m").build()
    assert bare.encode("abc").tokens == ["abc"]
    assert bare.decode(bare.encode(" ab").ids) == " ab"


@pytest.mark.unit
def test_sentencepiece_equals_transformers(tmp_path: Path) -> None:
    """Random vocabularies of both kinds of order, with ties, on random texts."""
    import random

    from transformers.integrations.gguf import convert_gguf_tokenizer

    choose = random.Random(5)
    for architecture in ("llama", "gemma3"):
        letters = ["\u2581", "a", "b", "c", "d"]
        words = {"".join(choose.choices(letters, k=choose.randint(2, 5))) for _ in range(120)}
        pieces = [*SPM[:259], *letters, *sorted(words)]
        scores = [0.0] * 264 + [-float(choose.randint(1, 30)) for _ in words]
        kinds = [2, 3, 3, *([6] * 256), *([1] * (len(pieces) - 259))]
        ours = GGUFTokenizer(
            {
                **spm(tokens=pieces, scores=scores, token_type=kinds, add_space_prefix=architecture == "llama"),
                "general.architecture": architecture,
            },
            "m",
        ).build()
        theirs, _ = convert_gguf_tokenizer(
            "gemma3" if architecture == "gemma3" else "phi3",  # of theirs, phi3 spells a space as SentencePiece does
            {"tokens": pieces, "scores": scores, "token_type": kinds, "tokenizer_type": "llama"},
        )
        for _ in range(200):
            text = "".join(choose.choices("abcd ", k=choose.randint(1, 20)))
            expected = theirs.encode(text, add_special_tokens=False).tokens
            shown = ours.encode(text, add_special_tokens=False).tokens
            assert shown == expected, (architecture, text)


@pytest.mark.unit
def test_gemmas_runs_of_spaces() -> None:
    tokens = [*SPM, "  ", "   "]
    table = {
        **spm(tokens=tokens, scores=[0.0] * len(tokens), token_type=[*SPM_KINDS, 4, 4], add_space_prefix=False),
        "general.architecture": "gemma3",
    }
    assert GGUFTokenizer(table, "m").build().encode("a  b", add_special_tokens=False).ids == [260, 266, 261]


@pytest.mark.unit
def test_the_order_of_merges() -> None:
    assert merges_from_ranks(["a", "b", "c", "ab", "bc", "abc"], [0, 0, 0, -2, -1, -1]) == [
        ("ab", "c"), ("a", "bc"), ("b", "c"), ("a", "b"),
    ]  # fmt: skip


@pytest.mark.unit
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "t5"}, "tokenizer model 't5' is not supported: supported are gpt2 and llama"),
        ({"model": None}, "tokenizer model None"),
        ({"model": ["gpt2"]}, "is not supported"),
        ({"pre": "poro"}, "pre-tokenizer 'poro' is not supported: supported are default"),
        ({"tokens": []}, "no vocabulary"),
        ({"tokens": None}, "no vocabulary"),
        ({"tokens": "abc"}, "are no list"),
        ({"tokens": [1, 2, 3]}, "no vocabulary of texts"),
        ({"tokens": ["a", "b", "a"]}, "names a token twice"),
        ({"tokens": ["a", "b", "c" * (2**20 + 1)]}, "a token of its vocabulary has 1048577 characters"),
        ({"token_type": [1, 1]}, "3 tokens and 2 kinds"),
        ({"token_type": [1, 1, "x"]}, "kinds of tokens"),
        ({"merges": ["ab"]}, "no pair"),
        ({"merges": [3]}, "no pair"),
        ({"merges": ["a z"]}, "do not fit"),
        ({"merges": {"a": "b"}}, "are no list"),
        ({"bos_token_id": 3}, "bos_token_id is 3, but there are 3 tokens"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"eos_token_id": 2**32 - 1}, "eos_token_id is 4294967295"),
        ({"eos_token_id": True}, "eos_token_id is True"),
        ({"eos_token_id": "2"}, "eos_token_id is '2'"),
        ({"eot_token_id": 1.5}, "eot_token_id is 1.5"),
        ({"model": "llama"}, "3 tokens and 0 scores"),
        ({"model": "llama", "scores": [0.0, 0.0, float("nan")]}, "score .* no number"),
        ({"model": "llama", "scores": [0.0, 0.0, 0.0], "unknown_token_id": 9}, "unknown_token_id is 9"),
        ({"model": "llama", "scores": [0.0] * 3, "tokens": ["a", "b", "c" * 20_000]}, "too long"),
    ],
)
def test_hostile_tables(changes: dict[str, Any], message: str) -> None:
    start = time.process_time()
    with pytest.raises(ConfigError, match=message):
        build(["a", "b", "c"], **changes)
    assert time.process_time() - start < 1


def tokenizer_json(vocabulary: Any, **parts: Any) -> str:
    """A tokenizer.json of a BPE model."""
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    model |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary, "merges": []}
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return json.dumps({"version": "1.0", "added_tokens": [], **empty, "model": model, **parts})


def split(expression: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


@pytest.mark.unit
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no valid tokenizer"),
        ("{}", "no valid tokenizer"),
        ('{"a":' * 100_000, "no valid tokenizer"),
        (tokenizer_json({}), "empty"),
        (tokenizer_json({"a": 0, "b": 0}), "two tokens .* same number"),
        (tokenizer_json({"a": -1}), "no valid tokenizer"),
        (tokenizer_json({"a": 0, "b": 4_000_000_000}), "the number 4000000000"),
        (tokenizer_json({"a": 0, "b": 2**24}), "the number 16777216"),
        (tokenizer_json({"a": 2**64}), "no valid tokenizer"),
        (tokenizer_json({"a": 0.5}), "no valid tokenizer"),
        (tokenizer_json({"a" * (2**20 + 1): 0}), "1048577 characters"),
        (tokenizer_json({"a": 0}, pre_tokenizer=split("(")), "no valid tokenizer"),
        (tokenizer_json({"a": 0}, pre_tokenizer=split("(a+)+$")), "repeats a group that itself repeats"),
        (
            tokenizer_json(
                {"a": 0}, pre_tokenizer={"type": "Sequence", "pretokenizers": [split("x"), split("(a|a)*b")]}
            ),
            "repeats a group",
        ),
        (
            tokenizer_json({"a": 0}, normalizer={"type": "Replace", "pattern": {"Regex": "(x*)*y"}, "content": " "}),
            "repeats a group",
        ),
        (tokenizer_json({"a": 0}, pre_tokenizer=split(r"(a)\1")), "refers to what a group matched"),
        (tokenizer_json({"a": 0}, pre_tokenizer=split("a|" * 11_000 + "b")), "has 22001 characters"),
        (tokenizer_json({"a": 0}, pre_tokenizer=split("a{9999}")), "repeats something 9999 times"),
    ],
    ids=range(18),
)
def test_hostile_files(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    start = time.process_time()
    with pytest.raises(ConfigError, match=rf"(?s)tokenizer\.json.*{message}"):
        load_tokenizer_file(path)
    assert time.process_time() - start < 1


@pytest.mark.unit
def test_a_good_file_loads(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    tokenizer.save(str(path))
    assert load_tokenizer_file(path).encode("ab").ids == [2]


@pytest.mark.unit
@pytest.mark.parametrize(
    "expression",
    [
        "(a+)+", "(a*)*", "(?:a+)*b", "(a|b)+", "(?i:x+)+", "(?<n>a+)+", "((a)+)+", "(a?)+", "(a{1,3}){2,}",
        "(a+){10}", "(?=(a+)+)b", "x(?:[^]]+y)*", r"([\]a]+)*", r"(\(+)+", "(a+)+?", "(a+)++", r"(a)\1", r"\k<n>",
        r"(?<n>a\g<n>?)", "a{2000}", "(a{1000}){3000}",
    ],
)  # fmt: skip
def test_heavy_expressions(expression: str) -> None:
    assert why_heavy(expression)


@pytest.mark.unit
@pytest.mark.parametrize(
    "expression",
    [
        *(one.expression for one in _SPLITS.values()),
        r" ?[^(\s|[.,!?\u2026])]+", r"\p{N}{1,3}", r"[\p{Han}&&[^\p{L}]]+", r"(?=(\d{3})+(?!\d))", "(?i)a+b*", "(a+)?",
        "a{2}{3}", r"[a-z(+*)]+", r"\(a+\)+", "(ab)+c", "", "x{,}", r"(?:\r\n|\n)?a+", "a{1,1000}",
    ],
)  # fmt: skip
def test_harmless_expressions(expression: str) -> None:
    assert why_heavy(expression) is None


@pytest.mark.unit
@pytest.mark.parametrize("unit", ["a", " ", "\n", "1", "a ", "'", "\u00e9", "!", "\u4f60", "a1 ", " \n", "\r\n "])
@pytest.mark.parametrize("table", ["gpt-2", "smollm", "llama-bpe", "qwen2", "tekken", "spm"])
def test_time_is_linear_in_hostile_text(unit: str, table: str) -> None:
    tokenizer = GGUFTokenizer(spm(), "m").build() if table == "spm" else build(BYTES, pre=table)
    text = unit * (100_000 // len(unit)) + "x"
    start = time.process_time()
    tokenizer.encode(text)
    assert time.process_time() - start < 5  # a tenth of a second each; quadratic time would take hours
