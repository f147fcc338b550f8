"""The clients of docs/serving.md: every piece of its code runs, the question being what the model is to answer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fake_model import model_folder
from running_server import KEY, RunningServer, healthy_server, start_server
from spoken_calls import ANSWER, CALLS, MEANT, TEMPLATE

pytestmark = pytest.mark.e2e
PAGE = Path(__file__).parents[3] / "docs" / "serving.md"
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
QUESTION = '"What is the weather in Oslo?"'
TOOLS: list[Any] = [
    {"name": "get_weather", "description": "", "parameters": {"type": "object", "properties": {"city": {}}}},
    {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}},
]
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}
# Client -> (the package it needs, what its piece prints: the template puts a tool's name before its answer).
PIECES = {
    "OpenAI's client": ("openai", "get_weather4 degrees in Oslo"),
    "Anthropic's client": ("anthropic", "{count}\nget_weather4 degrees in Oslo"),
    "LangChain": ("langchain_openai", "4 degrees in Oslo\n"),
    "LiteLLM": ("litellm", CALL + "\n"),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = tmp_path_factory.mktemp("clients") / "qwen"
    with healthy_server(model_folder(path, template=TEMPLATE), path / "server.log") as running:
        yield running


def piece_of(name: str) -> str:
    section = PAGE.read_text().partition("## Responses and Messages")[2].partition("\n## ")[0]
    pieces = dict(re.findall(r"^```python\n# ([^\n]+)\n(.*?)^```$", section, re.M | re.S))
    assert set(pieces) == set(PIECES), "the page shows other clients than are tested"
    return str(pieces[name])


@pytest.mark.parametrize("name", [one for one in PIECES if one != "LiteLLM"])
def test_the_code_of_the_page(served: RunningServer, name: str) -> None:
    run_piece(served, name)


@pytest.mark.full  # 200 MB to install, and slow to import
def test_the_code_of_the_page_for_litellm(served: RunningServer) -> None:
    run_piece(served, "LiteLLM")


def run_piece(served: RunningServer, name: str) -> None:
    package, expected = PIECES[name]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    code = piece_of(name)
    for shown, here in (("http://127.0.0.1:8000", served.url), ('"none"', repr(KEY)), (QUESTION, repr(CALL))):
        assert shown in code
        code = code.replace(shown, here)
    done = subprocess.run(
        [sys.executable, "-c", code.replace("MODEL", "fake")],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **OFFLINE},
    )
    with served.client() as client:
        messages = [{"role": "user", "content": CALL}]
        count = client.post("/v1/messages/count_tokens", json={"messages": messages}).json()["input_tokens"]
    assert done.stdout == expected.replace("{count}", str(count)), done.stderr[-3000:]


def test_the_code_of_the_page_for_vectors(folder: Path, tmp_path: Path) -> None:
    (code,) = [one for one in pieces_of_page() if "embeddings.create" in one]
    running = start_server(folder, tmp_path / "log", environment={"FAKE_POOLING": "pool"})
    try:
        running.wait_healthy()
        code = code.replace("http://127.0.0.1:8000", running.url).replace('"none"', repr(KEY))
        code = code.replace("dimensions=32", "dimensions=4")  # the fake's vectors have 8
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    finally:
        assert running.stop() == 0
    assert -1.0 <= float(done.stdout or "nan") <= 1.0, done.stderr[-3000:]


def pieces_of_page() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def test_no_piece_of_the_page_is_left_out() -> None:
    """Each is run by a test: those above, `test_chat_tools.py` (tools) and `test_grpc_client.py` (gRPC)."""
    marks = (
        *(f"# {name}\n" for name in PIECES),
        "embeddings.create",
        "InferenceStub",
        "messages=messages, tools=tools)",
    )
    for piece in pieces_of_page():
        assert any(mark in piece for mark in marks), piece
    assert len(pieces_of_page()) == len(PIECES) + 3


def test_langchain(served: RunningServer) -> None:
    """Streams, tools, forced output, and the Responses API behind the same class."""
    langchain_openai = pytest.importorskip("langchain_openai")
    options = {"model": "fake", "base_url": f"{served.url}/v1", "api_key": KEY, "max_retries": 0}
    model = langchain_openai.ChatOpenAI(**options)
    assert model.invoke("abc").content == "abc"
    assert "".join(chunk.content for chunk in model.stream("abc")) == "abc"
    called = model.bind_tools(TOOLS).invoke(CALLS)
    assert [(one["name"], one["args"]) for one in called.tool_calls] == MEANT
    total: Any = None
    for chunk in model.bind_tools(TOOLS).stream(CALLS):
        total = chunk if total is None else total + chunk
    assert [(one["name"], one["args"]) for one in total.tool_calls] == MEANT
    schema = {"title": "City", "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    forced = model.with_structured_output(schema, method="json_schema").invoke('{"city": "Oslo"}')
    assert forced == {"city": "Oslo"}
    responses = langchain_openai.ChatOpenAI(**options, use_responses_api=True)
    assert responses.invoke("abc").text == "abc"
    called = responses.bind_tools(TOOLS).invoke(ANSWER)
    assert [(one["name"], one["args"]) for one in called.tool_calls] == MEANT
    from langchain_core.messages import HumanMessage, ToolMessage

    history = [HumanMessage(CALLS), called, *(ToolMessage("x", tool_call_id=one["id"]) for one in called.tool_calls)]
    rendered = responses.bind_tools(TOOLS).invoke([*history, HumanMessage("show")]).text.split("@@")[0]
    assert [one["role"] for one in json.loads(rendered)] == ["user", "assistant", "tool", "tool", "user"]


@pytest.mark.full
def test_litellm(served: RunningServer) -> None:
    """Its three faces: chat, Responses, and Anthropic's Messages, each over ours."""
    pytest.importorskip("litellm")
    code = """
import json, litellm, sys
url, key, calls = sys.argv[1:]
tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}},
         {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]
asked = {"messages": [{"role": "user", "content": calls}], "tools": tools, "api_key": key}
chat = litellm.completion(model="hosted_vllm/fake", api_base=url + "/v1", **asked)
stream = litellm.completion(model="hosted_vllm/fake", api_base=url + "/v1", stream=True, **asked)
whole = litellm.stream_chunk_builder(list(stream))
anthropic = litellm.completion(model="anthropic/fake", api_base=url, **asked)
print(json.dumps([[[c.function.name, json.loads(c.function.arguments)] for c in one.choices[0].message.tool_calls]
                  for one in (chat, whole, anthropic)]))
print(litellm.responses(model="openai/fake", api_base=url + "/v1", api_key=key, input="abc").output[-1].content[0].text)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, served.url, KEY, CALLS],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, **OFFLINE},
    )
    calls, text = done.stdout.splitlines()[-2:] if done.stdout.count("\n") > 1 else ("null", done.stderr[-4000:])
    assert json.loads(calls) == [[list(one) for one in MEANT]] * 3, done.stderr[-4000:]
    assert text == "abc"
