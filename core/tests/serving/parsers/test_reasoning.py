"""Every reasoning parser: thoughts before an answer, begun by the answer, the prompt or neither; and with calls."""

from __future__ import annotations

import json

import pytest
from calls_as_written import CASES, WRITTEN, mark
from reading import parser, read

pytestmark = pytest.mark.unit
THOUGHT, ANSWER = "First \u20ac, then \U0001f600.\n\nSo <b>.", "It is 4.\n"
MARKS = {
    "deepseek_r1": ("<think>\n", "\n</think>\n\n"),
    "deepseek_v3": ("<think>", "</think>"),
    "qwen3": ("<think>\n", "\n</think>\n\n"),
    "glm45": ("\n<think>", "</think>\n"),
    "kimi_k2": ("<think>", "</think>"),
    "minimax_m2": ("<think>\n", "\n</think>\n\n"),
    "granite": ("Here is my thought process: ", "\n\nHere's my response: "),
    "mistral": ("[THINK]", "[/THINK]"),
    "gemma4": ("<|channel>thought\n", "<channel|>"),
}
OPENED_BY_PROMPT = ("deepseek_r1", "deepseek_v3", "qwen3", "kimi_k2", "minimax_m2")
TOOLS_OF = {
    "deepseek_r1": "deepseek_v3", "deepseek_v3": "deepseek_v31", "qwen3": "hermes", "glm45": "glm45",
    "kimi_k2": "kimi_k2", "minimax_m2": "minimax_m2", "granite": "granite4", "mistral": "mistral, names",
    "gemma4": "gemma4",
}  # fmt: skip


def same_in_any_split(text: str, tools: str = "none", reasoning: str = "none", **options: object) -> dict[str, object]:
    whole = read(parser(tools, reasoning, **options), [text])
    for cut in range(len(text) + 1):
        assert read(parser(tools, reasoning, **options), [text[:cut], text[cut:]]) == whole, cut
    assert read(parser(tools, reasoning, **options), list(text)) == whole
    return whole


@pytest.mark.parametrize("name", MARKS)
def test_a_thought_and_an_answer(name: str) -> None:
    before, after = MARKS[name]
    found = same_in_any_split(before + THOUGHT + after + ANSWER, reasoning=name)
    assert found == {"reasoning": THOUGHT, "content": ANSWER, "calls": []}


@pytest.mark.parametrize("name", MARKS)
def test_a_thought_and_calls(name: str) -> None:
    tools, render = WRITTEN[TOOLS_OF[name]]
    before, after = MARKS[name]
    text = before + THOUGHT + after + render(CASES["multiple"])
    found = same_in_any_split(text, tools=tools, reasoning=name)
    assert found["reasoning"] == THOUGHT and found["content"] == ""
    ((_, called, arguments),) = found["calls"]  # type: ignore[misc]
    assert (called, json.loads(arguments)) == CASES["multiple"][0]


@pytest.mark.parametrize("name", OPENED_BY_PROMPT)
def test_a_thought_that_the_prompt_begins(name: str) -> None:
    text, prompt = f"{THOUGHT}\n</think>\n\n{ANSWER}", "...assistant<think>\n"
    found = {"reasoning": THOUGHT, "content": ANSWER, "calls": []}
    assert same_in_any_split(text, reasoning=name, prompt=prompt) == found
    assert same_in_any_split(f"<think>{text}", reasoning=name, prompt=prompt) == found  # and the model repeats it


@pytest.mark.parametrize("name", OPENED_BY_PROMPT)
def test_no_thought_where_the_prompt_ends_it(name: str) -> None:
    found = same_in_any_split(ANSWER, reasoning=name, prompt="assistant\n<think>\n\n</think>\n\n")
    assert found == {"reasoning": "", "content": ANSWER, "calls": []}


@pytest.mark.parametrize("name", sorted(set(MARKS) - {"deepseek_r1"}))
def test_an_answer_without_a_thought(name: str) -> None:
    text = f"\n{ANSWER} with {MARKS[name][0].strip()} in it"
    assert same_in_any_split(text, reasoning=name) == {"reasoning": "", "content": text, "calls": []}


def test_r1_thinks_though_nothing_says_so() -> None:
    assert same_in_any_split(f"{THOUGHT}</think>{ANSWER}", reasoning="deepseek_r1")["content"] == ANSWER
    assert same_in_any_split(THOUGHT, reasoning="deepseek_r1") == {"reasoning": THOUGHT, "content": "", "calls": []}


def test_a_call_breaks_a_thought_off_where_the_family_does_so() -> None:
    text = "<think>\nHm.\n" + WRITTEN["hermes"][1](CASES["simple"])
    found = same_in_any_split(text, tools="hermes", reasoning="qwen3")
    assert found["reasoning"] == "Hm." and len(found["calls"]) == 1  # type: ignore[arg-type]
    without = same_in_any_split(text, reasoning="qwen3")
    assert without["content"] == "" and str(without["reasoning"]).startswith("Hm.\n<tool_call>")


def test_minimax_keeps_its_thought_in_the_content() -> None:
    found = same_in_any_split(f"{THOUGHT}</think>{ANSWER}", reasoning="minimax_m2_append_think", prompt="ai\n<think>\n")
    assert found == {"reasoning": "", "content": f"<think>{THOUGHT}</think>{ANSWER}", "calls": []}


HARMONY = (
    f"<|channel|>analysis<|message|>{THOUGHT}<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>I look it up. <|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "P"}<|call|>'
)


@pytest.mark.parametrize("names", [("openai", "openai_gptoss"), ("openai", "none"), ("none", "openai_gptoss")])
def test_harmony(names: tuple[str, str]) -> None:
    found = same_in_any_split(HARMONY, *names)
    assert found == {
        "reasoning": THOUGHT, "content": "I look it up.", "calls": [("id0", "get_weather", '{"city": "P"}')]
    }  # fmt: skip
    assert same_in_any_split(HARMONY.removesuffix("<|call|>"), *names) == found  # where that token ended the sequence
    text = f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>final<|message|>{ANSWER}"
    assert same_in_any_split(text, *names) == {"reasoning": THOUGHT, "content": ANSWER, "calls": []}
    first = "to=functions.now<|channel|>commentary json<|message|>{}"
    assert same_in_any_split(first, *names)["calls"] == [("id0", "now", "{}")]
    assert same_in_any_split(" " + first, *names)["calls"] == [("id0", "now", "{}")]


def test_marks_are_what_the_models_write() -> None:
    assert mark("tool calls begin") == "<\uff5ctool\u2581calls\u2581begin\uff5c>"
