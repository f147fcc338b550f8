"""Grammars on their own: what is accepted, what is refused with which words, and that random walks always validate."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import regex
from jsonschema import Draft202012Validator
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tenon_core.sampling.grammar import Grammar, Vocabulary, check
from tenon_core.sampling.params import SamplingParams
from tenon_core.sampling.structured import StructuredOutputs, schema_text
from tenon_platforms.errors import RequestError

SUITE = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "json-schema-test-suite" / "draft2020-12"
END = 0
MAX_TOKENS = 120
WALKS = 4  # a schema
PIECES = ("true", "false", "null", '"foo"', '"bar"', '": ', "10", "aaa", "}]", '","', "[{", " \n")


@pytest.fixture
def _ecma(monkeypatch: pytest.MonkeyPatch) -> None:
    """The validator with expressions that know Unicode's classes, as ECMA's do; Python's own do not."""
    for module in ("_keywords", "_utils"):
        monkeypatch.setattr(f"jsonschema.{module}.re", regex)


@cache
def vocabulary() -> tuple[Vocabulary, list[bytes]]:
    """Every printable ASCII character, some UTF-8 bytes, and pieces that cross a grammar's boundaries."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    wholes = ["".join(part for part, _ in level.pre_tokenize_str(piece)) for piece in PIECES]
    merges = list(dict.fromkeys((one[:cut], one[cut]) for one in wholes for cut in range(1, len(one))))
    names = list(dict.fromkeys(["<end>", *letters, *(left + right for left, right in merges)]))
    tokenizer = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=merges))
    tokenizer.pre_tokenizer = level
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    made = Vocabulary.of(tokenizer.to_str(), len(names), (END,))
    return made, [made.tokenizer.decode_bytes([index]) for index in range(len(names))]


def walk(grammar: Grammar, rng: random.Random) -> str | None:
    """A random output, or None where it did not end by itself within `MAX_TOKENS` tokens."""
    made, texts = vocabulary()
    row, said = np.zeros(-(-made.size // 32), dtype=np.int32), b""
    for _ in range(MAX_TOKENS):
        grammar.fill(row)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[: made.size]).tolist()
        assert allowed, f"nothing may follow {said!r}"
        closers = [one for one in allowed if one == END or texts[one] in (b'"', b"}", b"]")]
        token = rng.choice(closers if closers and rng.random() < 0.3 else allowed)
        if token == END:
            return said.decode()
        grammar.advance(token)
        said += texts[token]
    return None


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, group) of the suite."""
    for file in sorted(SUITE.glob("*.json")):
        for group in json.loads(file.read_text(encoding="utf-8")):
            yield f"{file.stem}: {group['description']}", group


@pytest.mark.usefixtures("_ecma")
@pytest.mark.skipif(not SUITE.is_dir(), reason="needs the JSON Schema Test Suite beside the checkout")
def test_every_output_of_an_accepted_schema_validates() -> None:
    accepted = ended = total = 0
    for name, group in cases():
        total += 1
        try:
            wanted = StructuredOutputs(json=schema_text(group["schema"]))
            check(wanted)
            grammar = vocabulary()[0].compile(wanted)
        except RequestError:
            continue
        accepted += 1
        validator = Draft202012Validator(group["schema"])
        for index in range(WALKS):
            text = walk(grammar.fork(), random.Random(f"{name}/{index}"))
            if text is not None:
                ended += 1
                error = next(iter(validator.iter_errors(json.loads(text))), None)
                assert error is None, f"{name}: {text!r} does not follow {group['schema']}: {error}"
    assert accepted > total // 3, f"{accepted} of {total} schemas were accepted"
    assert ended > accepted * WALKS // 3, f"{ended} walks of {accepted * WALKS} ended"


@pytest.mark.skipif(not SUITE.is_dir(), reason="needs the JSON Schema Test Suite beside the checkout")
def test_what_is_valid_is_accepted_and_what_is_not_is_never_complete() -> None:
    """Instances of the suite, written as JSON, through the matcher byte by byte. Order of keys is the schema's."""
    made, texts = vocabulary()
    byte_of = {text: index for index, text in enumerate(texts) if len(text) == 1}
    wrong = []
    for name, group in cases():
        try:
            grammar = made.compile(StructuredOutputs(json=schema_text(group["schema"])))
        except RequestError:
            continue
        for test in group["tests"]:
            if test["valid"]:
                continue
            written = json.dumps(test["data"], ensure_ascii=False).encode()
            at = grammar.fork()
            tokens = [byte_of[bytes([byte])] for byte in written if bytes([byte]) in byte_of]
            if at.matcher.try_consume_tokens(tokens) == len(written) and at.matcher.is_accepting():
                wrong.append(f"{name}: {test['description']}")
    assert not wrong, wrong[:10]


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"not": {"type": "string"}}, "/not"),
        ({"properties": {"a/b": {"type": "array", "uniqueItems": True}}}, "/properties/a~1b/uniqueItems"),
        ({"items": [{"if": {}}]}, "items"),
        ({"$ref": "https://example.com/remote.json"}, "remote.json"),
        ({"type": "string", "format": "no-such-format"}, "no-such-format"),
    ],
)
def test_refusals_name_the_place(schema: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestError, match="structured_outputs") as refused:
        check(StructuredOutputs(json=schema_text(schema)))
    assert named in refused.value.message
    assert refused.value.param == "structured_outputs"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"json": "{}", "regex": "a"},
        {"regex": ""},
        {"regex": "a" * 300_000},
        {"choice": []},
        {"choice": ["a", ""]},
        {"choice": ["a"] * 2000},
        {"json": "\ud800"},
    ],
)
def test_malformed_requests(given: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="structured_outputs"):
        SamplingParams(structured_outputs=StructuredOutputs(**given))


@pytest.mark.parametrize("schema", [3, "[1]", "{", [], '{"a":' * 100 + "1" + "}" * 100])
def test_what_is_no_schema(schema: Any) -> None:
    with pytest.raises(RequestError, match="JSON schema"):
        schema_text(schema)


@pytest.mark.parametrize(
    "wanted",
    [
        {"regex": "(((a+)+)+)+$"},
        {"regex": "(a{1,1000}){1,1000}b"},
        {"regex": "(" * 5_000 + "a" + ")" * 5_000},
        {"grammar": 'start: a\na: a "x" | "x"'},
        {"grammar": "start: " + '"a"? ' * 5_000},
        {"choice": [f"{index:06}" for index in range(1024)]},
        {"json": json.dumps({"enum": [f"{index:05}" for index in range(20_000)]})},
        {"json": json.dumps({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})},
        {"json": json.dumps({"type": "array", "minItems": 10**9, "items": {"type": "array", "minItems": 10**9}})},
    ],
    ids=lambda wanted: next(iter(wanted)),
)
def test_expensive_grammars_are_bounded(wanted: dict[str, Any]) -> None:
    """Compiled and walked, or refused, in time: work per step has a bound of its own."""
    started = time.monotonic()
    try:
        grammar = vocabulary()[0].compile(StructuredOutputs(**wanted))
        walk(grammar, random.Random(0))
    except RequestError as error:
        assert "structured_outputs" in error.message
    assert time.monotonic() - started < 20


def test_structural_tags_hold_their_schemas() -> None:
    tag = {
        "structures": [{"begin": "<f>", "schema": {"type": "object", "properties": {"x": {"type": "integer"}},
                        "required": ["x"], "additionalProperties": False}, "end": "</f>"}],
        "triggers": ["<f"],
    }  # fmt: skip
    grammar = vocabulary()[0].compile(StructuredOutputs(structural_tag=json.dumps(tag)))
    texts = vocabulary()[1]
    byte_of = {text: index for index, text in enumerate(texts) if len(text) == 1}
    for byte in b'say <f>{"x": 12}</f> and':
        grammar.advance(byte_of[bytes([byte])])
    other = vocabulary()[0].compile(StructuredOutputs(structural_tag=json.dumps(tag)))
    with pytest.raises(RequestError):
        for byte in b'say <f>{"y"':
            other.advance(byte_of[bytes([byte])])
    with pytest.raises(RequestError, match="triggers"):
        check(StructuredOutputs(structural_tag=json.dumps({**tag, "triggers": ["<g"]})))
