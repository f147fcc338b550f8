"""Every tool parser on BFCL's kinds of cases: what was meant comes out, whole and in pieces."""

from __future__ import annotations

import json
import random

import pytest
from calls_as_written import BARE, CASES, ENDLESS, SCHEMAS, WRITTEN
from reading import parser, pieces_of, read

from tenon_core.serving.parsers.registry import load_parsers

pytestmark = pytest.mark.unit
BEFORE, AFTER = "Let me look \u20ac.\n\n", "\nThere [you] {go}."


def texts() -> list[tuple[str, str, str, str, str]]:
    """(id, parser, case, text, content)."""
    found = []
    for way, (name, render) in WRITTEN.items():
        for case, calls in CASES.items():
            text = render(calls)
            found.append((f"{way}-{case}", name, case, text, ""))
            if way not in BARE and name != "openai" and case in ("simple", "parallel", "long"):
                found.append((f"{way}-{case}-text before", name, case, BEFORE + text, BEFORE.strip()))
    return found


TEXTS = texts()
IDS = [one[0] for one in TEXTS]


def meant(case: str) -> list[tuple[str, object]]:
    return list(CASES[case])


@pytest.mark.parametrize(("name", "case", "text", "content"), [one[1:] for one in TEXTS], ids=IDS)
def test_what_was_meant(name: str, case: str, text: str, content: str) -> None:
    found = read(parser(name), [text])
    assert [(name, json.loads(arguments)) for _, name, arguments in found["calls"]] == meant(case)
    assert found["content"] == content
    for made in (list(text), pieces_of(text, range(7, len(text), 7))):
        assert read(parser(name), made) == found


@pytest.mark.parametrize(("name", "case", "text", "content"), [one[1:] for one in TEXTS], ids=IDS)
def test_any_split_is_the_whole(name: str, case: str, text: str, content: str) -> None:
    """Every split into two where the text is short, and random ones into many."""
    whole = read(parser(name), [text])
    is_short = len(text) < 400 and content == ""
    cuts = range(len(text) + 1) if is_short else sorted(random.Random(1).sample(range(len(text)), 25))
    for cut in cuts:
        assert read(parser(name), [text[:cut], text[cut:]]) == whole, cut
    for seed in range(12):
        chance = random.Random(seed)
        many = sorted(chance.sample(range(len(text)), chance.randint(2, min(60, len(text) - 1))))
        assert read(parser(name), pieces_of(text, many)) == whole, (seed, many)


@pytest.mark.parametrize("way", sorted(set(WRITTEN) - ENDLESS))
def test_text_after_the_calls(way: str) -> None:
    name, render = WRITTEN[way]
    text = render(CASES["simple"]) + AFTER
    found = read(parser(name), [text])
    assert [name for _, name, _ in found["calls"]] == ["get_weather"]
    assert found["content"] == AFTER.strip()
    assert read(parser(name), list(text)) == found


@pytest.mark.parametrize("way", WRITTEN)
def test_no_call(way: str) -> None:
    name, _ = WRITTEN[way]
    for text in (
        "",
        "Hello.",
        "  Hello \u20ac\n\n",
        'a < b and [1, 2] {"x": 1}',
        '{"answer": 42}',
        "[1, 2, 3]\n",
        "to be",
    ):
        assert read(parser(name), [text]) == {"content": text, "reasoning": "", "calls": []}
        assert read(parser(name), list(text))["content"] == text


@pytest.mark.parametrize("way", WRITTEN)
def test_a_call_that_breaks_off_is_content(way: str) -> None:
    """Cut anywhere within a short call: what came is given back, to the letter but for marks without a meaning."""
    name, render = WRITTEN[way]
    text = render(CASES["multiple"])
    whole = read(parser(name), [text])
    for cut in range(len(text)):
        found = read(parser(name), [text[:cut]])
        assert found == read(parser(name), list(text[:cut]))
        assert found["calls"] in ([], whole["calls"])
        assert found["content"] == ("" if found["calls"] else text[:cut])


@pytest.mark.parametrize("way", WRITTEN)
def test_a_broken_value_is_content(way: str) -> None:
    name, render = WRITTEN[way]
    text = render([("get_weather", {"days": 123454321})]).replace("123454321", "12x\u20ac,,")
    found = read(parser(name), [text])
    assert found == read(parser(name), list(text))
    if name in ("qwen3_coder", "qwen3_xml", "glm45", "glm47", "minimax_m2"):  # bare text: a string where no number
        assert json.loads(found["calls"][0][2]) == {"days": "12x\u20ac,,"}
    else:
        for silent in load_parsers(name, "none", None).tools.silent:  # type: ignore[union-attr]
            text = text.replace(silent, "")
        assert found["calls"] == [] and found["content"] == text


def test_long_arguments_stream_and_short_ones_come_whole() -> None:
    long = WRITTEN["hermes"][1](CASES["long"])
    for name, text in (("hermes", long), ("qwen3_coder", WRITTEN["qwen3_coder"][1](CASES["long"]))):
        made = parser(name)
        events = [event for letter in text for event in made.feed(letter)]
        parts = [event for event in events if getattr(event, "index", None) == 0]
        assert len(parts) > 500 and parts[0].id and parts[0].name == "write_file"
        assert json.loads("".join(part.arguments for part in parts)) == CASES["long"][0][1]
        assert len([event for event in events if getattr(event, "index", None) == 1]) == 1


def test_a_long_call_that_breaks_off_is_no_valid_json() -> None:
    text = WRITTEN["hermes"][1](CASES["long"])[:900]
    for pieces in ([text], list(text)):
        found = read(parser("hermes"), pieces)
        ((_, name, arguments),) = found["calls"]
        assert name == "write_file" and found["content"] == ""
        with pytest.raises(json.JSONDecodeError):
            json.loads(arguments)


def test_without_tools_calls_are_content() -> None:
    text = WRITTEN["hermes"][1](CASES["simple"])
    assert read(parser("hermes", schemas={}), [text])["content"] == text


def test_only_so_many_calls_are_told() -> None:
    text = WRITTEN["hermes"][1](CASES["parallel"])
    found = read(parser("hermes", max_calls=1), list(text))
    assert len(found["calls"]) == 1 and found["content"] == ""


def test_ids() -> None:
    assert (
        read(parser("kimi_k2"), [WRITTEN["kimi_k2"][1](CASES["parallel"])])["calls"][1][0] == "functions.get_weather:1"
    )
    text = "[TOOL_CALLS]now[CALL_ID]abc123DEF[ARGS]{}"
    assert read(parser("mistral"), [text])["calls"] == [("abc123DEF", "now", "{}")]
    from tenon_core.serving.parsers.tools.mistral import new_id

    assert len(new_id()) == 9 and new_id().isalnum()


def test_a_bare_answer_must_be_of_a_known_tool() -> None:
    for name, text in (
        ("llama3_json", '{"name": "Ada", "parameters": {}}'),
        ("llama3_json", '{"name": "now"}'),
        ("pythonic", "[print(x=1)]"),
    ):
        assert read(parser(name), list(text)) == {"content": text, "reasoning": "", "calls": []}
    assert read(parser("hermes"), ['<tool_call>{"name": "other"}</tool_call>'])["calls"] == [("id0", "other", "{}")]


def test_forms_that_models_write_beside_the_rule() -> None:
    for text in (
        '<tool_call>{"arguments": {"city": "P"}, "name": "get_weather"}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"P\\"}"}</tool_call>',
        '<tool_call>{"id": 1, "type": "function", "name": "get_weather", "parameters": {"city": "P"}}',
        '<tool_call>[{"name": "get_weather", "arguments": {"city": "P"}}]</tool_call>',
    ):
        assert read(parser("hermes"), list(text))["calls"] == [("id0", "get_weather", '{"city": "P"}')], text
    raw = '<tool_call>{"name": "write_file", "arguments": {"content": "a\nb\tc"}}</tool_call>'  # raw line ends
    assert json.loads(read(parser("hermes"), list(raw))["calls"][0][2]) == {"content": "a\nb\tc"}
    python = "[write_file(path='it\\'s', content=\"\\x41\\u20ac\\d\")]"
    assert json.loads(read(parser("pythonic"), list(python))["calls"][0][2]) == {
        "path": "it's",
        "content": "A\u20ac\\d",
    }


def test_arguments_as_their_schema_says() -> None:
    def one(**given: str) -> object:
        values = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in given.items())
        text = f"<tool_call>\n<function={given.pop('tool', 'mixed')}>\n{values}</function>\n</tool_call>"
        return json.loads(read(parser("qwen3_coder"), list(text))["calls"][0][2])

    assert one(value="null", ratio="1") == {"value": None, "ratio": 1}
    assert one(value="12") == {"value": "12"}
    assert one(free="12") == {"free": 12}
    assert one(free="{'a': True, 'b': (1, None)}") == {"free": {"a": True, "b": [1, None]}}
    assert one(free="01234") == {"free": "01234"}
    assert one(free="__import__('os').system('x')") == {"free": "__import__('os').system('x')"}
    assert SCHEMAS["mixed"]["properties"]["free"] == {}
