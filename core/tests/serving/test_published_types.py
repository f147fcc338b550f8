"""The types that OpenAI's and Anthropic's own libraries publish: every field and choice is served or refused by name,
and every answer and event is, strictly, of the type that the library reads it as.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_type_hints

import anthropic.types as claude
import httpx
import openai.types as plain
import openai.types.chat as chat
import openai.types.responses as responses
import pytest
from fake_model import model_folder
from published_types import variants
from pydantic import TypeAdapter
from running_server import RunningServer, healthy_server
from spoken_calls import ANSWER, TEMPLATE

pytestmark = pytest.mark.e2e
USER = [{"role": "user", "content": "a"}]
CALL = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTIONS = [{"name": "get_weather", "parameters": CALL}, {"name": "now"}]
# Route -> (the published request, what a request has in any case).
REQUESTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "/v1/completions": (
        plain.completion_create_params.CompletionCreateParamsNonStreaming, {"prompt": "a", "max_tokens": 2},
    ),
    "/v1/chat/completions": (
        chat.completion_create_params.CompletionCreateParamsNonStreaming, {"messages": USER, "max_tokens": 2},
    ),
    "/v1/responses": (
        responses.response_create_params.ResponseCreateParamsNonStreaming, {"input": "a", "max_output_tokens": 2},
    ),
    "/v1/messages": (
        claude.message_create_params.MessageCreateParamsNonStreaming, {"messages": USER, "max_tokens": 2},
    ),
    "/v1/messages/count_tokens": (claude.message_count_tokens_params.MessageCountTokensParams, {"messages": USER}),
}  # fmt: skip
OTHER_NAMES = {"max_completion_tokens": "max_tokens"}  # of the same thing, of which a request has one


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose model thinks and calls tools, as the prompt says."""
    path = tmp_path_factory.mktemp("published") / "qwen"
    with healthy_server(model_folder(path, template=TEMPLATE), path / "server.log") as running:
        yield running


@pytest.mark.parametrize("path", REQUESTS)
def test_every_field_is_served_or_refused_by_its_name(speaker: RunningServer, path: str) -> None:
    published, base = REQUESTS[path]
    num_served = num_refused = 0
    with speaker.client() as client:
        for name, hint in get_type_hints(published).items():
            for value in variants(hint) if name != "model" else ("fake",):
                body = {**base, name: value}
                body.pop(OTHER_NAMES.get(name, ""), None)
                answer = client.post(path, json=body)
                if answer.status_code == 200:
                    num_served += 1
                    continue
                num_refused += 1
                case = f"{name} = {json.dumps(value)[:200]}: {answer.text[:300]}"
                assert answer.status_code == 400 or (name, answer.status_code) == ("previous_response_id", 404), case
                error = answer.json()["error"]
                assert "is not a field of this request" not in error["message"], case
                assert name in error["message"] or error.get("param") == name, case
    assert num_served > 10 and num_refused > 2 if path != "/v1/messages/count_tokens" else num_served > 10


def strictly(kind: Any, data: Any) -> None:
    TypeAdapter(kind).validate_json(json.dumps(data), strict=True)


def events(client: httpx.Client, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a stream; those that have a name are of that type."""
    for block in client.post(path, json={**body, "stream": True}).text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        if lines and lines["data"] != "[DONE]":
            event = json.loads(lines["data"])
            assert "event" not in lines or lines["event"] == event["type"]
            yield event


def told(role_content: str, **further: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": role_content}], "max_tokens": 2000, **further}


OPENAI_TOOLS = [{"type": "function", "function": one} for one in FUNCTIONS]
RESPONSE_TOOLS = [{"type": "function", **one} for one in FUNCTIONS]
CLAUDE_TOOLS = [{"name": one["name"], "input_schema": CALL} for one in FUNCTIONS]
ANSWERS: list[tuple[str, dict[str, Any], Any, Any]] = [
    ("/v1/completions", {"prompt": ["ab", "c"], "logprobs": 2, "max_tokens": 4, "n": 2},
     plain.Completion, plain.Completion),
    ("/v1/chat/completions", told(ANSWER, tools=OPENAI_TOOLS, n=2), chat.ChatCompletion, chat.ChatCompletionChunk),
    ("/v1/chat/completions", told("ab", logprobs=True, top_logprobs=2), chat.ChatCompletion, chat.ChatCompletionChunk),
    ("/v1/responses", {"input": ANSWER, "tools": RESPONSE_TOOLS, "reasoning": {"summary": "auto"}, "user": "me"},
     responses.Response, responses.ResponseStreamEvent),
    ("/v1/responses", {"input": "abc", "max_output_tokens": 2, "include": ["message.output_text.logprobs"],
                       "top_logprobs": 1, "metadata": {"a": "b"}}, responses.Response, responses.ResponseStreamEvent),
    ("/v1/responses", {"input": '{"city": "Oslo"}', "text": {"format": {
        "type": "json_schema", "name": "x", "schema": CALL}}}, responses.Response, responses.ResponseStreamEvent),
    ("/v1/messages", told(ANSWER, tools=CLAUDE_TOOLS, thinking={"type": "enabled", "budget_tokens": 1024}),
     claude.Message, claude.RawMessageStreamEvent),
    ("/v1/messages", told("ab", stop_sequences=["b"]), claude.Message, claude.RawMessageStreamEvent),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(ANSWERS)))
def test_answers_and_events_are_of_the_published_types(speaker: RunningServer, place: int) -> None:
    path, body, whole, piece = ANSWERS[place]
    usage = {"stream_options": {"include_usage": True}} if path.endswith("completions") else {}
    with speaker.client() as client:
        answer = client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        strictly(whole, answer.json())
        found = [one for one in events(client, path, {**body, **usage}) if one.get("type") != "ping"]
        assert len(found) > 2
        for one in found:
            for choice in one.get("choices", ()) if piece is plain.Completion else ():
                choice["finish_reason"] = (
                    choice["finish_reason"] or "stop"
                )  # null on the way, which the type leaves out
            strictly(piece, one)


def test_small_answers_are_of_the_published_types(speaker: RunningServer) -> None:
    with speaker.client() as client:
        for one in client.get("/v1/models").json()["data"]:
            strictly(plain.Model, one)
        strictly(claude.MessageTokensCount, client.post("/v1/messages/count_tokens", json={"messages": USER}).json())
        made = client.post("/v1/responses", json={"input": "a", "background": True}).json()
        strictly(responses.Response, made)
        for one in client.get(f"/v1/responses/{made['id']}/input_items").json()["data"]:
            strictly(responses.ResponseItem, one)
        client.post(f"/v1/responses/{made['id']}/cancel")
        strictly(responses.Response, client.get(f"/v1/responses/{made['id']}").json())


def test_a_mistake_is_told_by_its_place(speaker: RunningServer) -> None:
    with speaker.client() as client:
        for path, fields, words in (
            ("/v1/chat/completions", {"response_format": {}}, "response_format.type is needed"),
            ("/v1/responses", {"text": {"format": {}}}, "text.format.type is needed"),
            ("/v1/responses", {"reasoning": {"context": "all_turns"}}, "reasoning.context is 'all_turns'"),
            ("/v1/messages", {"output_config": {"format": {}}}, "output_config.format.type is needed"),
            ("/v1/completions", {"stop": [1]}, "stop is"),
        ):
            answer = client.post(path, json={**REQUESTS[path][1], **fields})
            assert answer.status_code == 400 and words in answer.json()["error"]["message"], answer.text
