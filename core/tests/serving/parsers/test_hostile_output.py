"""T32: output that is meant to hurt costs linear work and bounded memory, and means the same in pieces of any size."""

from __future__ import annotations

import json
import random

import pytest
from calls_as_written import WRITTEN
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import parser, pieces_of, read

from tenon_core.serving.parsers.reader import MAX_HELD, Markers
from tenon_core.serving.parsers.registry import load_parsers

pytestmark = pytest.mark.unit
NAMES = sorted({name for name, _ in WRITTEN.values()})
MARKS = {name: tuple(dict.fromkeys(load_parsers(name, "none", None).tools.marks())) for name in NAMES}  # type: ignore[union-attr]
LONGEST = max(len(mark) for marks in MARKS.values() for mark in marks)


def endless(name: str) -> list[str]:
    """Prefixes that never end: openers again and again, and each opener with what keeps a parser waiting."""
    opener = MARKS[name][0]
    return [
        opener, opener[:-1], opener + " ", opener + '{"name": "', opener + "[" * 9, "{", "[now(", "<", " ",
        opener + "now", opener + '{"name": "now", "arguments": {"a": [',
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_work_is_linear(name: str) -> None:
    """Letters looked at, in pieces of one letter: the same number for each letter however long the text is."""
    for unit in endless(name):
        work = {}
        for count in (2_000, 8_000):
            made = parser(name, "qwen3")
            for letter in (unit * count)[:count]:
                made.feed(letter)
            made.finish()
            work[count] = made.scan.work / count
        assert work[8_000] < 1.2 * work[2_000] + 1, (unit, work)
        assert work[8_000] < 4 * LONGEST, (unit, work)


@pytest.mark.parametrize("name", NAMES)
def test_memory_is_bounded(name: str) -> None:
    """What a parser keeps, after four times what it may hold back."""
    opener = MARKS[name][0]
    starts = [opener, opener + '{"name": "f', opener + "now\n<arg_key>a</arg_key><arg_value>", " ", "[now(x='", "{"]
    for start in starts:
        made = parser(name)
        made.feed(start)
        for _ in range(4 * MAX_HELD // 64):
            made.feed("x " * 32)
        scan = made.scan
        kept = len(scan.text) - scan.place + scan.num_held + sum(map(len, scan._arguments)) + len(scan._content.blank)
        assert kept <= MAX_HELD + 600, (start, kept)


def test_a_call_too_long_to_be_one_is_content_to_the_letter() -> None:
    text = "<tool_call>" + " " * (2 * MAX_HELD) + '{"name": "now"}</tool_call> <tool_call>{"name": "now"}</tool_call>'
    whole = read(parser("hermes"), [text])
    assert len(whole["calls"]) == 1
    chance = random.Random(0)
    for _ in range(5):
        cuts = [*chance.sample(range(len(text)), 50), MAX_HELD + 3]
        assert read(parser("hermes"), pieces_of(text, sorted(set(cuts)))) == whole
    value = "<tool_call>\n<function=mixed>\n<parameter=free>\n" + "y" * (2 * MAX_HELD) + "\n</parameter></function>"
    whole = read(parser("qwen3_coder"), [value])
    assert whole["calls"] == [] and whole["content"] == value
    assert read(parser("qwen3_coder"), pieces_of(value, range(100, len(value), 100))) == whole


def test_ten_thousands_of_openers_one_letter_a_piece() -> None:
    made = parser("hermes", "qwen3")
    text = "<tool_call>" * 30_000
    found = read(made, text)
    assert found["content"] == text and found["calls"] == []


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_text_in_any_pieces(name: str, data: st.DataObject) -> None:
    """Soup of marks, half marks, JSON and letters: never an error, and the same however it is cut."""
    marks = MARKS[name]
    atoms = st.sampled_from(
        [*marks, *(mark[: len(mark) // 2] for mark in marks), "{", "}", "[", "]", '"', "'", ":", ",", "=", "(", ")",
         "\\", '{"name": "now", "arguments": {}}', '"name": "now"', '"arguments": ', "now", "city", "1.5", "true", "\n",
         " ", "call:", "to=functions.now", "function", "</think>", "<think>", "\u20ac", "\U0001f600", "x"]
    )  # fmt: skip
    text = "".join(data.draw(st.lists(atoms, max_size=30)))
    whole = read(parser(name, "qwen3"), [text])
    assert read(parser(name, "qwen3"), list(text)) == whole
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    assert read(parser(name, "qwen3"), pieces_of(text, cuts)) == whole


def test_nothing_is_evaluated() -> None:
    for text in ("[now(x=__import__('os').system('true'))]", "[now(x=open('/etc/passwd').read())]", "[now(**{})]"):
        assert read(parser("pythonic"), list(text)) == {"content": text, "reasoning": "", "calls": []}


def test_a_marker_within_another_is_refused() -> None:
    with pytest.raises(ValueError, match="lies within"):
        Markers(("<a>", "x<a>y"))


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (r"\ud83d\ude00", "\U0001f600"), (r"\ud83d", "\ufffd"), (r"\ude00\ud83d", "\ufffd\ufffd"),
        (r"\uD83Dx\ud83d\ud83d\ude00", "\ufffdx\ufffd\U0001f600"), (r"\ud83d\u00e9\ud83d\n", "\ufffd\u00e9\ufffd\n"),
    ],
)  # fmt: skip
def test_half_a_surrogate_pair_is_no_character(written: str, told: str) -> None:
    """Clients parse arguments, send them back, and some protocols send them as JSON: all of it must be Unicode."""
    call = f'<tool_call>{{"name": "now", "arguments": {{"{written}": "{written}"}}}}</tool_call>'
    quoted = json.dumps(json.dumps({"a": "@"})).replace("@", written)  # arguments as a text that holds a map
    text = f'<tool_call>{{"name": "now", "arguments": {quoted}}}</tool_call>'
    for one, wanted in ((call, {told: told}), (text, {"a": told})):
        whole = read(parser("hermes"), [one])
        (found,) = whole["calls"]
        assert json.loads(found[2]) == wanted
        for cut in range(len(one)):
            assert read(parser("hermes"), pieces_of(one, [cut])) == whole
