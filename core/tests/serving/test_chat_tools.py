"""Tools and reasoning through a real server and the official client: whole answers, streams, history, refusals.

The fake engine repeats the prompt, and this template renders the last message's content as the prompt: so a test says
what the model answers. `@B` and the like become control tokens, which only a template may write.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from fake_model import model_folder
from running_server import KEY, RunningServer, start_server
from spoken_calls import ANSWER, CALLS, MEANT, TEMPLATE

pytestmark = pytest.mark.e2e
KIMI = (
    "{{ messages[-1].content | replace('@S', '<|tool_calls_section_begin|>') | replace('@B', '<|tool_call_begin|>')"
    " | replace('@A', '<|tool_call_argument_begin|>') | replace('@E', '<|tool_call_end|>')"
    " | replace('@T', '<|tool_calls_section_end|>') | replace('@P', '<|pad|>') }}<|im_end|>"
)
KIMI_CONTROL = (
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
)  # fmt: skip
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
NAMED = {"type": "function", "function": {"name": "now"}}


def serve(path: Path, template: str, control: tuple[str, ...] = (), **options: Any) -> RunningServer:
    running = start_server(model_folder(path, template=template, more_control=control), path / "server.log", **options)
    try:
        running.wait_healthy()
    except BaseException:
        running.stop()
        raise
    return running


@pytest.fixture(scope="module")
def tools_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = serve(tmp_path_factory.mktemp("tools") / "qwen", TEMPLATE)
    yield running
    assert running.process.poll() is None
    running.stop()
    log = running.log.read_text()
    assert "Traceback" not in log, log[-4000:]
    assert "tool calls are read as hermes, reasoning as qwen3" in log


@pytest.fixture
def ai(tools_server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tools_server.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def asked(content: str, **options: Any) -> dict[str, Any]:
    messages = [*options.pop("before", ()), {"role": "user", "content": content}]
    return {"model": "fake", "messages": messages, "tools": TOOLS, **options}


def streamed(ai: openai.OpenAI, **options: Any) -> dict[str, Any]:
    """What a client puts together from a stream."""
    found: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "reason": None, "num_pieces": 0}
    for piece in ai.chat.completions.create(**options, stream=True):
        (choice,) = piece.choices
        delta, found["num_pieces"] = choice.delta, found["num_pieces"] + 1
        found["content"] += delta.content or ""
        thought = getattr(delta, "reasoning_content", None) or ""
        assert thought == (getattr(delta, "reasoning", None) or "")
        found["reasoning"] += thought
        for call in delta.tool_calls or ():
            assert call.function is not None
            if call.index == len(found["calls"]):
                assert call.id and call.type == "function" and call.function.name
                found["calls"].append([call.function.name, ""])
            else:
                assert call.id is None and call.function.name is None
            found["calls"][call.index][1] += call.function.arguments or ""
        found["reason"] = choice.finish_reason or found["reason"]
    return found


def whole(ai: openai.OpenAI, **options: Any) -> dict[str, Any]:
    (choice,) = ai.chat.completions.create(**options).choices
    message = choice.message
    thought = getattr(message, "reasoning_content", "")
    assert thought == getattr(message, "reasoning", "")
    calls = [[one.function.name, one.function.arguments] for one in message.tool_calls or ()]  # type: ignore[union-attr]
    return {"content": message.content or "", "reasoning": thought, "calls": calls, "reason": choice.finish_reason}


def test_calls_and_reasoning(ai: openai.OpenAI) -> None:
    found = whole(ai, **asked(ANSWER))
    assert [(name, json.loads(arguments)) for name, arguments in found["calls"]] == MEANT
    assert (found["content"], found["reasoning"]) == ("I look it up.", "Which city \u20ac?")
    assert found["reason"] == "tool_calls"
    stream = streamed(ai, **asked(ANSWER))
    assert stream.pop("num_pieces") < len(ANSWER.encode()) + 3  # at most one a token, the opening, the end
    assert stream == found


def test_a_message_of_calls_alone_has_no_content(ai: openai.OpenAI) -> None:
    (choice,) = ai.chat.completions.create(**asked(CALLS)).choices
    assert choice.message.content is None and choice.message.tool_calls is not None
    ids = [call.id for call in choice.message.tool_calls]
    assert len(set(ids)) == 2 and all(one.startswith("call_") for one in ids)


@pytest.mark.parametrize(
    "content",
    [
        "Plain \u20ac text.\n",
        "<tool_call>no call</tool_call>",
        '<tool_call>{"name": "now", "arguments": {"a": }}</tool_call>',
        "<tool_call>",
    ],
)
def test_what_is_no_call_is_content(ai: openai.OpenAI, content: str) -> None:
    found = whole(ai, **asked(content))
    assert found == {"content": content, "reasoning": "", "calls": [], "reason": "stop"}
    stream = streamed(ai, **asked(content))
    assert stream.pop("num_pieces") and stream == found


def test_cut_off_by_its_length(ai: openai.OpenAI) -> None:
    for limit in (30, 100, len(ANSWER.encode()) - 5):
        found = whole(ai, **asked(ANSWER, max_tokens=limit))
        assert found["reason"] == "length"
        stream = streamed(ai, **asked(ANSWER, max_tokens=limit))
        assert stream.pop("num_pieces") and stream == found


def test_long_arguments_come_in_parts(ai: openai.OpenAI) -> None:
    text = json.dumps({"name": "get_weather", "arguments": {"city": "x" * 1500}})
    parts = 0
    for piece in ai.chat.completions.create(**asked(f"<tool_call>{text}</tool_call>"), stream=True):
        parts += bool(piece.choices[0].delta.tool_calls)
    assert parts > 500


def test_choices(ai: openai.OpenAI) -> None:
    assert whole(ai, **asked(CALLS, tool_choice="none"))["content"] == CALLS
    assert whole(ai, **asked("show", tool_choice="none"))["content"].split("@@")[1] == "null"
    assert json.loads(whole(ai, **asked("show", tool_choice="auto"))["content"].split("@@")[1]) == TOOLS
    one = whole(ai, **asked(CALLS, parallel_tool_calls=False))
    assert [name for name, _ in one["calls"]] == ["get_weather"] and one["content"] == ""
    without = asked(CALLS)
    del without["tools"]
    assert whole(ai, **without)["content"] == CALLS


def test_forced_calls(ai: openai.OpenAI) -> None:
    """What the grammar lets through is read as calls: a list, or one tool's arguments."""
    listed = '[{"name": "get_weather", "parameters": {"city": "Oslo"}}, {"name": "now", "parameters": {}}]'
    for content, choice, calls in (
        (listed, "required", [["get_weather", '{"city": "Oslo"}'], ["now", "{}"]]),
        ("{}", NAMED, [["now", "{}"]]),
        ("{ }", NAMED, [["now", "{}"]]),
    ):
        found = whole(ai, **asked(content, tool_choice=choice))
        assert found == {"content": "", "reasoning": "", "calls": calls, "reason": "tool_calls"}
        stream = streamed(ai, **asked(content, tool_choice=choice))
        assert stream.pop("num_pieces") and stream == found


def test_the_grammar_of_forced_calls() -> None:
    from tenon_core.serving.forced_calls import any_tool, one_tool

    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    assert json.loads(one_tool("f", city)[1].json or "") == city
    wanted = json.loads(any_tool({"f": city, "g": {}}, is_one=True)[1].json or "")
    assert (wanted["minItems"], wanted["maxItems"]) == (1, 1)
    assert [one["properties"]["name"] for one in wanted["items"]["anyOf"]] == [{"const": "f"}, {"const": "g"}]
    assert "maxItems" not in json.loads(any_tool({"f": city}, is_one=False)[1].json or "")


def test_schemas_that_refer_to_themselves_may_be_forced() -> None:
    """Their references lead to their own root wherever it lies, and the grammar compiles and means the same."""
    from tenon_core.sampling.grammar import check
    from tenon_core.serving.forced_calls import any_tool, one_tool

    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "v": {"type": "integer"}}}
    schema = {
        "type": "object",
        "properties": {
            "list": {"$ref": "#/$defs/node"},
            "again": {"$ref": "#/properties/word"},
            "word": {"const": "a"},
        },
        "$defs": {"node": {**node, "default": {"$ref": "#/$defs/node"}}},
    }
    check(one_tool("f", schema)[1])
    for schemas in ({"f": schema}, {"f": schema, "g": {}, "h": schema}):
        forced = any_tool(schemas, is_one=False)[1]
        check(forced)
        wanted = json.loads(forced.json or "")
        validator = jsonschema.Draft202012Validator(wanted)
        for parameters, is_valid in (
            ({"list": {"v": 1, "next": {"v": 2}}, "again": "a"}, True),
            ({"list": {"v": 1, "next": {"v": "x"}}}, False),
            ({"again": "b"}, False),
        ):
            assert validator.is_valid([{"name": "f", "parameters": parameters}]) == is_valid
        assert wanted["$defs"]["tool0"]["$defs"]["node"]["default"] == {"$ref": "#/$defs/node"}  # data, as it was


BROKEN = {"function": {"name": "a", "arguments": "{"}}


def schema_of(parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "a", "parameters": parameters}}


@pytest.mark.parametrize(
    ("changes", "param", "words"),
    [
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice", "one of the two"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice", "none of tools"),
        ({"tool_choice": "required", "tools": []}, "tool_choice", "tools is empty"),
        ({"tool_choice": "sometimes"}, "tool_choice", "expected"),
        ({"tool_choice": {"type": 1}}, "tool_choice", "expected"),
        ({"tools": [{"type": "function"}]}, "tools", "expected"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "letters"),
        ({"tools": [schema_of([])]}, "tools", "schema"),
        ({"tools": [schema_of({"properties": 1})]}, "tools", "schemas"),
        ({"tools": [TOOLS[1], TOOLS[1]]}, "tools", "second one"),
        ({"tools": [{"type": "function", "function": {"name": f"t{one}"}} for one in range(1000)]}, "tools", "at most"),
        ({"reasoning_effort": "extreme" * 20}, "reasoning_effort", "64"),
        ({"before": [{"role": "assistant", "tool_calls": [BROKEN]}]}, "messages", "JSON"),
        ({"before": [{"role": "assistant", "tool_calls": 3}]}, "messages", "list"),
    ],
)  # fmt: skip
def test_refusals(ai: openai.OpenAI, changes: dict[str, Any], param: str, words: str) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match=words) as caught:
            ai.chat.completions.create(**asked("hi", stream=stream, **changes))
        assert caught.value.param == param


def test_history(ai: openai.OpenAI) -> None:
    """What a client sends back: calls with arguments as a map, the tool's name, reasoning under both names."""
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    before = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm", "refusal": None},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "4 \u20ac <|im_end|>"}]},
    ]
    found = whole(ai, **asked("show", before=before, reasoning_effort="high"))["content"]
    messages, _, effort = found.split("@@")
    system, assistant, tool, _ = json.loads(messages)
    assert effort == "high" and system == {"role": "system", "content": "Be brief."}
    assert assistant["tool_calls"] == [{**call, "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}]
    assert assistant["reasoning"] == assistant["reasoning_content"] == "hm" and "refusal" not in assistant
    assert tool["name"] == "get_weather" and tool["content"] == "4 \u20ac <|im_end|>"  # text, not the token


def test_control_tokens_in_tools_stay_text(ai: openai.OpenAI) -> None:
    """Also in the keys of maps, which templates print."""
    schema = {"type": "object", "properties": {"<|im_end|>": {"type": "string", "description": "<|im_start|>"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    found = whole(ai, **asked("show", tools=tools))["content"].split("@@")[1]
    assert json.loads(found) == tools


def test_reasoning_may_be_left_out(ai: openai.OpenAI) -> None:
    asked_so = asked("<think>a</think>b", extra_body={"include_reasoning": False})
    assert whole(ai, **asked_so)["reasoning"] == ""
    assert streamed(ai, **asked_so)["reasoning"] == ""
    assert whole(ai, **asked("<think>a</think>b"))["reasoning"] == "a"


def test_logprobs_and_token_ids_are_whole_whatever_is_held_back(ai: openai.OpenAI) -> None:
    tokens, ids = 0, []
    extra = {"return_token_ids": True}
    for piece in ai.chat.completions.create(**asked(CALLS, logprobs=True, stream=True, extra_body=extra)):
        (choice,) = piece.choices
        tokens += len((choice.logprobs and choice.logprobs.content) or ())
        ids += getattr(choice, "token_ids", None) or []
    assert tokens == len(ids) == len(CALLS.encode()) + 1


def test_the_code_of_the_page(tools_server: RunningServer) -> None:
    """docs/serving.md, the question being what the model is to answer."""
    page = (Path(__file__).parents[3] / "docs" / "serving.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page.partition("## Tools and reasoning")[2], re.M | re.S)
    call = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
    question = '"What is the weather in Oslo?"'
    for shown, here in (("http://127.0.0.1:8000", tools_server.url), ('"none"', repr(KEY)), (question, repr(call))):
        assert shown in code
        code = code.replace(shown, here)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "get_weather4 degrees in Oslo", done.stderr  # the template puts the tool's name before it


def test_control_tokens_are_seen_by_the_parser_and_by_nobody_else(tmp_path: Path) -> None:
    running = serve(tmp_path / "kimi", KIMI, KIMI_CONTROL, tool_call_parser="kimi_k2", reasoning_parser="none")
    try:
        with openai.OpenAI(base_url=f"{running.url}/v1", api_key=KEY, max_retries=0) as ai:
            text = 'Look:@P @S@Bfunctions.get_weather:0@A{"city": "Oslo"}@E@Bfunctions.now:1@A{}@E@T'
            (choice,) = ai.chat.completions.create(**asked(text)).choices
            assert choice.message.content == "Look:" and choice.finish_reason == "tool_calls"
            assert [call.id for call in choice.message.tool_calls or ()] == [
                "functions.get_weather:0",
                "functions.now:1",
            ]
            found = streamed(ai, **asked(text))
            assert found["calls"] == [["get_weather", '{"city": "Oslo"}'], ["now", "{}"]]
            assert whole(ai, **asked("a@Pb@E", tool_choice="none"))["content"] == "ab"  # special tokens have no text
    finally:
        running.stop()
    assert "Traceback" not in running.log.read_text()


def test_without_a_parser_tools_are_refused(tmp_path: Path) -> None:
    running = serve(tmp_path / "none", TEMPLATE, tool_call_parser="none", enable_auto_tool_choice=True)
    try:
        with openai.OpenAI(base_url=f"{running.url}/v1", api_key=KEY, max_retries=0) as ai:
            with pytest.raises(openai.BadRequestError, match="--tool-call-parser"):
                ai.chat.completions.create(**asked("hi"))
            assert whole(ai, **asked("hi", tool_choice="none"))["content"] == "hi"
    finally:
        running.stop()


def test_an_operator_may_forbid_calls(tmp_path: Path) -> None:
    running = serve(tmp_path / "off", TEMPLATE, enable_auto_tool_choice=False)
    try:
        with running.client() as client:
            refused = client.post("/v1/chat/completions", json=asked("hi"))
            assert refused.status_code == 400 and "--no-enable-auto-tool-choice" in refused.text
            answer: httpx.Response = client.post(
                "/tokenize", json={"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
            )
            assert answer.status_code == 200
    finally:
        running.stop()
