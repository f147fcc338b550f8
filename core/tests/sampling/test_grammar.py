"""Grammars on their own: what is accepted, what is refused with which words, and that random walks always validate."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import regex
from fake_model import byte_tokenizer
from grammar_walks import allowed_by, is_whole, vocabulary, walk
from jsonschema import Draft202012Validator
from tokenizers import normalizers

from tenon_core.sampling.grammar import Vocabulary, check
from tenon_core.sampling.params import SamplingParams
from tenon_core.sampling.structured import StructuredOutputs, schema_text
from tenon_platforms.errors import RequestError

SUITE = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "json-schema-test-suite" / "draft2020-12"
BACKENDS = ("guidance", "xgrammar")
WALKS = 4  # a schema


@pytest.fixture
def _ecma(monkeypatch: pytest.MonkeyPatch) -> None:
    """The validator with expressions that know Unicode's classes, as ECMA's do; Python's own do not."""
    for module in ("_keywords", "_utils"):
        monkeypatch.setattr(f"jsonschema.{module}.re", regex)


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, group) of the suite."""
    for file in sorted(SUITE.glob("*.json")):
        for group in json.loads(file.read_text(encoding="utf-8")):
            yield f"{file.stem}: {group['description']}", group


@pytest.mark.usefixtures("_ecma")
@pytest.mark.skipif(not SUITE.is_dir(), reason="needs the JSON Schema Test Suite beside the checkout")
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_output_of_an_accepted_schema_validates(backend: str) -> None:
    accepted = ended = total = 0
    wrong = []
    for name, group in cases():
        total += 1
        try:
            wanted = StructuredOutputs(json=schema_text(group["schema"]))
            check(wanted, backend)
            grammar = vocabulary(backend)[0].compile(wanted)
        except RequestError:
            continue
        accepted += 1
        validator = Draft202012Validator(group["schema"])
        for index in range(WALKS):
            text = walk(grammar.fork(), random.Random(f"{name}/{index}"))
            if text is None:
                continue
            ended += 1
            try:
                error = next(iter(validator.iter_errors(json.loads(text))), None)
            except ValueError as no_json:
                error = no_json
            if error is not None:
                wrong.append(f"{name}: {text!r} does not follow {group['schema']}: {error}")
    assert not wrong, "\n".join(wrong[:10])
    assert accepted > total // 3, f"{accepted} of {total} schemas were accepted"
    assert ended > accepted * WALKS // 3, f"{ended} walks of {accepted * WALKS} ended"


@pytest.mark.skipif(not SUITE.is_dir(), reason="needs the JSON Schema Test Suite beside the checkout")
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_not_valid_is_never_complete(backend: str) -> None:
    """Instances of the suite, written as JSON, through the matcher byte by byte."""
    made = vocabulary(backend)[0]
    wrong = []
    for name, group in cases():
        try:
            grammar = made.compile(StructuredOutputs(json=schema_text(group["schema"])))
        except RequestError:
            continue
        for test in group["tests"]:
            if test["valid"]:
                continue
            if is_whole(grammar.fork(), json.dumps(test["data"], ensure_ascii=False)):
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


SPELLS = "a<end>b"  # the vocabulary's special token, as text
TAGS = {"structures": [{"begin": "<f>", "schema": {"const": SPELLS}, "end": "</f>"}], "triggers": ["<f"]}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"choice": (SPELLS,)}, SPELLS),
        ({"choice": ("c", SPELLS, "a<end>c", "a<")}, SPELLS),
        ({"regex": "a[<]end>b"}, SPELLS),
        ({"grammar": f'?start: "{SPELLS}" // end\n'}, SPELLS),
        ({"grammar": 'root ::= "a<" "end" ">b"'}, SPELLS),
        ({"json": json.dumps({"enum": [SPELLS]})}, f'"{SPELLS}"'),
        ({"json": json.dumps({"properties": {SPELLS: {"const": 1}}, "required": [SPELLS]})}, f'{{"{SPELLS}":1}}'),
        ({"structural_tag": json.dumps(TAGS)}, f'x<f>"{SPELLS}"</f>'),
    ],
    ids=str,
)
def test_a_forced_text_that_spells_a_special_token(backend: str, wanted: dict[str, Any], text: str) -> None:
    """It is written in ordinary tokens, and the special one is not among those that may come."""
    grammar = vocabulary(backend)[0].compile(StructuredOutputs(**wanted))
    assert is_whole(grammar.fork(), text)
    before = text.index("<end>")
    byte_of = {one: index for index, one in enumerate(vocabulary(backend)[1]) if len(one) == 1}
    for letter in text[:before]:
        grammar.advance(byte_of[letter.encode()])
    assert byte_of[b"<"] in allowed_by(grammar)
    assert is_whole(grammar.fork(), text[before:]), "a fork goes on from where it was"
    if not wanted.get("choice", ())[1:]:
        assert not is_whole(grammar, text[before:-1]), "and nothing is whole before its end"


@pytest.mark.parametrize("text", ["x<s>Y</s>", "<|im_end|>", "caf\u0065\u0301 <|im_start|>"])
@pytest.mark.parametrize("normalizer", [None, normalizers.Lowercase(), normalizers.NFC()], ids=str)
def test_a_forced_text_that_the_tokenizer_writes_otherwise(text: str, normalizer: Any) -> None:
    tokenizer = byte_tokenizer(("<s>", "</s>"))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokens = Vocabulary.of(tokenizer.to_str(), tokenizer.get_vocab_size(), (258,))
    grammar, said = tokens.compile(StructuredOutputs(choice=(text,))), b""
    while not grammar.is_complete:
        row = np.zeros(-(-tokens.size // 32), np.int32)
        grammar.fill(row)
        (token,) = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
        grammar.advance(token)
        said += bytes([token])
    assert said.decode() == text


@pytest.mark.parametrize(
    "grammar",
    [
        "?start: one\none: /[0-9]/",
        '!start: "7"',
        "\n\n  ?start : /[0-9]/",
        "// root ::= 7\n\nstart: /[0-9]/",
        '# root\n%ignore / /\nstart: "7"',
        'start: "7"\n  | "root ::= 7"',
        "ONE: /[0-9]/\n?start: ONE",
        "root ::= [0-9]",
        "# start: x\n\n  root ::= one-digit\n  one-digit ::= [0-9]",
    ],
)
def test_lark_and_gbnf_are_told_apart(grammar: str) -> None:
    wanted = StructuredOutputs(grammar=grammar)
    check(wanted)
    made = vocabulary()[0].compile(wanted)
    assert is_whole(made.fork(), "7") and not is_whole(made, "x")


@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_grammar_of_the_library_s_own_json_is_refused(blank: str) -> None:
    """It would bring schemas that nobody has looked at, and several grammars at once."""
    for inner in ({"json_schema": {"const": "a"}}, {"lark_grammar": 'start: "a"'}):
        wanted = StructuredOutputs(grammar=blank + json.dumps({"grammars": [inner, inner]}))
        with pytest.raises(RequestError, match="grammar is JSON"):
            check(wanted)


def test_a_schema_s_lone_surrogate() -> None:
    wanted = StructuredOutputs(json='{"enum": ["\\ud800", "b"]}')
    with suppress(RequestError):
        check(wanted)
