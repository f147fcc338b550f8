"""XGrammar as the second library: what it is given, what is refused with which path, and that it comes alone."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from grammar_walks import is_whole, vocabulary, walk
from jsonschema import Draft202012Validator

from tenon_core.client.grammars import GrammarChecks
from tenon_core.config import EngineConfig
from tenon_core.sampling import xgrammar_library
from tenon_core.sampling.backends import backend_for
from tenon_core.sampling.grammar import Grammar, check
from tenon_core.sampling.structured import StructuredOutputs, schema_text
from tenon_core.sampling.well_formed import WellFormed, shown
from tenon_core.sampling.xgrammar_schema import translate
from tenon_platforms.errors import ConfigError, RequestError

TREE = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/a~1b"}}, "required": ["v"]}
FOLLOWED: list[dict[str, Any]] = [
    {"type": "string", "minLength": 2, "maxLength": 5},
    {"type": "string", "pattern": "^[a-z]+-\\d{2}$"},
    {"type": "string", "pattern": "^[^a]{2,4}$"},
    {"type": "string", "pattern": "(ab|c)x?"},
    {"type": "string", "format": "uuid"},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1.25},
    {"type": "number", "minimum": -0.5},
    {"type": "integer", "minimum": -3.5, "exclusiveMaximum": 10},
    {"type": "integer", "multipleOf": 7},
    {"type": ["integer", "null", "array"], "maxItems": 1, "minimum": 3},
    {"minimum": 3},
    {"enum": ['a"b', "c\\d", "\u00e9", "\n", "\U0001f600", 1, -1.5, None, True, [1, {"x": 2}]]},
    {"type": "string", "enum": ["a", "b"]},
    {"const": {"a": 1.0, "b": "\u2028"}},
    {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "required": ["b"], "minProperties": 2},
    {"type": "object", "properties": {'a"b': {"type": "integer"}, "\u00e9\n": {}, "": {}}, "required": ['a"b', ""]},
    {"type": "object", "required": ["named"], "additionalProperties": {"type": "integer"}},
    {"type": "object", "propertyNames": {"pattern": "^[a-c]{2}$"}, "maxProperties": 2},
    {"type": "object", "unevaluatedProperties": {"type": "boolean"}},
    {"type": "object", "minProperties": 1},
    {"type": "array", "minItems": 2, "maxItems": 3, "uniqueItems": False},
    {"prefixItems": [{"type": "string"}, True], "items": {"type": "boolean"}, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "null"}], "unevaluatedItems": False},
    {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "object", "properties": {"x": {"$ref": "#"}}}]},
    {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"anyOf": [TREE, {"type": "null"}]}}},
    {"allOf": [{"type": "string", "minLength": 3}], "title": "one", "x-anything": [1]},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"not": {}}, "/not"),
    ({"properties": {"a/b": {"oneOf": [{}]}}}, "/properties/a~1b/oneOf"),
    ({"items": {"uniqueItems": True}}, "/items/uniqueItems"),
    ({"$ref": "#/$defs/x", "$defs": {"x": {"contains": {}}}}, "/$defs/x/contains"),
    ({"$ref": "#/$defs/x", "type": "object", "$defs": {"x": {}}}, "/type"),
    ({"$ref": "https://example.com/remote.json"}, "/$ref"),
    ({"$ref": "#"}, "/$ref"),
    ({"enum": ["a", 1], "type": "string"}, "/type"),
    ({"const": 12345678901234567890}, "/const"),
    ({"anyOf": [{}], "minimum": 1}, "/minimum"),
    ({"allOf": [{}, {}]}, "/allOf"),
    ({"type": "string", "pattern": "a", "maxLength": 3}, "/maxLength"),
    ({"type": "string", "pattern": "(a+)+"}, "/pattern"),
    ({"type": "string", "pattern": "(?=a)b"}, "/pattern"),
    ({"type": "string", "pattern": '"'}, "/pattern"),
    ({"type": "string", "pattern": "\\n"}, "/pattern"),
    ({"type": "string", "pattern": "(?:" * 80 + "^a"}, "/pattern"),
    ({"type": "string", "format": "no-such-format"}, "/format"),
    ({"type": "number", "multipleOf": 0.5}, "/multipleOf"),
    ({"type": "integer", "multipleOf": 2, "minimum": 3}, "/multipleOf"),
    ({"type": "number", "minimum": 1e-9}, "/minimum"),
    ({"type": "object", "minProperties": 2}, "/minProperties"),
    ({"type": "object", "properties": {"a": {}}, "propertyNames": {"maxLength": 1}}, "/propertyNames"),
    ({"patternProperties": {"a": {}}}, "/patternProperties"),
    ({"items": [{}]}, "/items"),
    ({"prefixItems": [False]}, "/prefixItems/0"),
    ({"type": "text"}, "/type"),
    ({"maxLength": -1}, "/maxLength"),
]
NESTED = {"type": "structural_tag", "format": {"type": "sequence", "elements": [
    {"type": "const_string", "value": "call "},
    {"type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": FOLLOWED[7]}, "end": "</f>"},
]}}  # fmt: skip


def compiled(**wanted: Any) -> Grammar:
    return vocabulary("xgrammar")[0].compile(StructuredOutputs(**wanted))


@pytest.mark.parametrize("schema", FOLLOWED, ids=json.dumps)
def test_outputs_validate(schema: dict[str, Any]) -> None:
    grammar, validator = compiled(json=schema_text(schema)), Draft202012Validator(schema)
    texts = [walk(grammar.fork(), random.Random(f"{schema}/{index}")) for index in range(15)]
    ended = [text for text in texts if text is not None]
    assert ended
    for text in ended:
        validator.validate(json.loads(text.encode()))


@pytest.mark.parametrize(("schema", "path"), REFUSED, ids=lambda value: json.dumps(value)[:60])
def test_what_is_not_followed_is_refused_with_its_path(schema: dict[str, Any], path: str) -> None:
    with pytest.raises(RequestError, match="structured_outputs") as refused:
        translate(schema_text(schema))
    assert refused.value.message.endswith(f" {path}")


def test_what_the_library_would_let_through() -> None:
    """Each of these it takes by itself, given the schema as it is."""
    named = compiled(json='{"type": "object", "properties": {"a": {"type": "integer"}}}')
    assert is_whole(named.fork(), '{"a": 1}')
    assert not is_whole(named.fork(), '{"\\u0061": "x"}'), "a name written with escapes"
    short = compiled(json='{"type": "string", "maxLength": 9}')
    assert is_whole(short.fork(), '"ab"')
    assert not is_whole(short.fork(), '"a\x01b"'), "a control character"


def test_text_stays_well_formed() -> None:
    """It takes surrogates and overlong forms; single bytes and tokens that hold several."""
    tokens = [b'"', b"\xed", b"\xa0\x80", b"\x9f\xbf", b"\xed\xa0", b"\xc0", b"\xc3\xa9", b""]
    assert shown(tokens) == [b'"', b"\xed", b"\xa0\x80", b"\x9f\xbf", b"", b"", b"\xc3\xa9", b""]
    rule = WellFormed.of(tokens)
    assert np.unpackbits(rule.following(1).view(np.uint8), bitorder="little")[:8].tolist() == [1, 1, 0, 1, 1, 1, 1, 1]
    assert np.unpackbits(rule.following(0).view(np.uint8), bitorder="little").tolist() == [1] * 8 + [0] * 24
    grammar, byte_of = compiled(json='{"type": "string"}'), vocabulary()[1].index
    for byte in b'"\xed':
        grammar.advance(byte_of(bytes([byte])))
    row = np.zeros(-(-vocabulary()[0].size // 32), dtype=np.int32)
    grammar.fill(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    assert bits[byte_of(b"\x9f")] and not bits[byte_of(b"\xa0")]


def test_nested_tags() -> None:
    grammar = compiled(structural_tag=json.dumps(NESTED))
    assert is_whole(grammar.fork(), "call <f>7</f>")
    assert not is_whole(grammar.fork(), "call <f>10</f>")
    for wrong in (
        {"type": "regex", "pattern": "(a+)+"},
        {"type": "sequence", "elements": [{}]},
        {"type": "or"},
        3,
        {"type": "json_schema", "json_schema": {}, "style": "qwen_xml"},
    ):
        with pytest.raises(RequestError, match="structural_tag"):
            compiled(structural_tag=json.dumps({"type": "structural_tag", "format": wrong}))
    with pytest.raises(RequestError, match="/not"):
        compiled(structural_tag=json.dumps({"format": {"type": "json_schema", "json_schema": {"not": {}}}}))
    many = {"type": "sequence", "elements": [{"type": "any_text"}] * 5}
    with pytest.raises(RequestError, match="any_text"):
        compiled(structural_tag=json.dumps({"type": "structural_tag", "format": many}))


def test_flat_tags() -> None:
    tag = {"structures": [{"begin": "<f>", "schema": FOLLOWED[7], "end": "</f>"}], "triggers": ["<f"]}
    grammar = compiled(structural_tag=json.dumps(tag))
    assert is_whole(grammar.fork(), "say <f>7</f> and")
    assert not is_whole(grammar.fork(), "say <f>10</f>")


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ({"json": "{}"}, ("guidance", "xgrammar")),
        ({"json_object": True}, ("guidance", "xgrammar")),
        ({"json": '{"propertyNames": {"maxLength": 2}}'}, ("xgrammar", "xgrammar")),
        ({"json": '{"propertyNames": {"maxLength": 2}, "not": {}}'}, ("guidance", "xgrammar")),
        ({"json": '{"properties": {"propertyNames": {}}, "default": {"propertyNames": 1}}'}, ("guidance", "xgrammar")),
        ({"structural_tag": json.dumps(NESTED)}, ("xgrammar", "xgrammar")),
        ({"structural_tag": '{"structures": [], "triggers": []}'}, ("guidance", "xgrammar")),
        ({"regex": "a"}, ("guidance", "guidance")),
        ({"choice": ("a",)}, ("guidance", "guidance")),
        ({"grammar": "root ::= root"}, ("guidance", "guidance")),
    ],
)
def test_the_choice_by_feature_and_by_option(wanted: dict[str, Any], chosen: tuple[str, str]) -> None:
    asked = StructuredOutputs(**wanted)
    assert (backend_for(asked, "auto"), backend_for(asked, "xgrammar")) == chosen
    assert backend_for(asked, "guidance") == "guidance"


@pytest.mark.parametrize("backend", ["auto", "guidance", "xgrammar"])
@pytest.mark.parametrize("schema", ["{", '{"items":' * 100 + "{}" + "}" * 100, "[" * 100_000])
def test_what_is_no_schema(backend: str, schema: str) -> None:
    """Given past the routes, which look at it before."""
    with pytest.raises(RequestError, match="JSON schema"):
        check(StructuredOutputs(json=schema), backend)


def test_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenon_core.config.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as refused:
        EngineConfig.from_flat(model="x", structured_outputs_backend="xgrammar")
    assert refused.value.remedy == "run: pip install tenon-core[xgrammar]"
    monkeypatch.setattr(xgrammar_library, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="not installed"):
        xgrammar_library.load()
    tags = StructuredOutputs(structural_tag=json.dumps(NESTED))
    assert backend_for(tags, "auto") == "guidance"
    with pytest.raises(RequestError, match=r"pip install tenon-core\[xgrammar\]"):
        check(tags)


def test_the_library_comes_without_what_its_package_imports() -> None:
    code = """
import sys
from tenon_core.sampling import xgrammar_library
library = xgrammar_library.load()
assert not {"torch", "transformers", "xgrammar", "triton"} & sys.modules.keys(), sorted(sys.modules)
import torch, xgrammar
assert xgrammar.Grammar is library.grammar and "transformers" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


def test_workers_compile_over_the_vocabulary() -> None:
    made = vocabulary()[0]
    asked = {"tokenizer_json": made.tokenizer_json, "size": made.size, "eos_token_ids": made.eos_token_ids}
    checks = GrammarChecks(backend="xgrammar", vocabulary=lambda: asked)
    try:
        for schema in FOLLOWED[:3]:
            checks.check(StructuredOutputs(json=json.dumps(schema)))
        checks.check(StructuredOutputs(regex="a+"))
        with pytest.raises(RequestError, match="/not"):
            checks.check(StructuredOutputs(json='{"not": {}}'))
        with pytest.raises(RequestError, match="more than 4 s"):
            checks.check(StructuredOutputs(json=json.dumps({"enum": ["a" * size for size in range(1, 700)]})))
    finally:
        checks.close()
