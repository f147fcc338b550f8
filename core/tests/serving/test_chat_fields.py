"""Every field of the installed client's chat API, and the further ones of this field's servers: served or refused."""

from __future__ import annotations

import typing
from typing import Any

import httpx
import openai.types.chat.completion_create_params as published
import openai.types.responses.response_create_params as published_responses
import pytest
from running_server import RunningServer

from tenon_core.serving.protocol import NOT_YET, REFUSED, ChatFields

pytestmark = pytest.mark.e2e
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
FURTHER = (
    "min_p", "top_k", "ignore_eos", "structured_outputs", "chat_template_kwargs", "return_token_ids", "cache_salt",
    "priority", "add_generation_prompt", "continue_final_message", "echo", "truncate_prompt_tokens",
    "allowed_token_ids", "bad_words", "skip_special_tokens", "spaces_between_special_tokens",
    "include_stop_str_in_output", "min_tokens", "prompt_logprobs", "request_id", "repetition_penalty",
    "stop_token_ids", "add_special_tokens", "documents", "chat_template", "mm_processor_kwargs", "include_reasoning",
)  # fmt: skip


def test_no_field_is_unknown() -> None:
    known = {*ChatFields.model_fields, *NOT_YET, *REFUSED}
    asked = {*typing.get_type_hints(published.CompletionCreateParamsNonStreaming), *FURTHER}
    assert not asked - known


def test_no_field_of_responses_is_unknown() -> None:
    from tenon_core.serving.openai.response_fields import NOT_YET as NOT_IN_RESPONSES
    from tenon_core.serving.openai.response_fields import ResponseFields

    asked = set(typing.get_type_hints(published_responses.ResponseCreateParamsNonStreaming))
    assert not asked - {*ResponseFields.model_fields, *NOT_IN_RESPONSES}


def ask(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post(CHAT, json={"messages": HELLO, "max_tokens": 4, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"safety_identifier": "x", "prompt_cache_key": "y", "metadata": {"a": "b"}, "user": "z"},
        {"store": False, "service_tier": "auto", "prompt_cache_retention": "in_memory", "modalities": ["text"]},
        {"verbosity": "medium", "reasoning_effort": "none"},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"spaces_between_special_tokens": True},
        {"spaces_between_special_tokens": False, "skip_special_tokens": False},
        {"add_special_tokens": False, "bad_words": [], "documents": []},
        {"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}]}, *HELLO]},
        {"messages": [*HELLO, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, *HELLO]},
        {"truncate_prompt_tokens": -1},
    ],
    ids=str,
)
def test_served(client: httpx.Client, fields: dict[str, Any]) -> None:
    answer = ask(client, **fields)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"store": True}, "store", "/v1/responses"),
        ({"service_tier": "flex"}, "service_tier", "not available"),
        ({"prompt_cache_retention": "24h"}, "prompt_cache_retention", "not available"),
        ({"functions": [{"name": "f"}]}, "functions", "send tools"),
        ({"verbosity": "low"}, "verbosity", "template"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "template"),
        ({"spaces_between_special_tokens": True, "skip_special_tokens": False}, "spaces_between_special_tokens", "tok"),
        ({"add_special_tokens": True}, "add_special_tokens", "template"),
        ({"bad_words": [""]}, "bad_words", "characters"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options", "False"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "-1"),
        ({"continue_final_message": True}, "messages", "continued"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", "one of the two"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "x"}}}, "tool_choice", "allowed_tools"),
        ({"audio": {"voice": "x", "format": "wav"}}, "audio", "not available"),
        ({"moderation": {"model": "x"}}, "moderation", "not available"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages", "input_audio"),
    ],
    ids=str,
)  # fmt: skip
def test_refused_with_a_reason(client: httpx.Client, fields: dict[str, Any], param: str, words: str) -> None:
    answer = ask(client, **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param and words in error["message"], error


def test_an_answer_that_goes_on(client: httpx.Client) -> None:
    """The prompt ends with the last message's text; the fake engine repeats the prompt, whose first token is hidden."""
    messages = [*HELLO, {"role": "assistant", "content": "ab  "}]
    options: dict[str, Any] = {"continue_final_message": True, "return_token_ids": True, "messages": messages}
    answer = ask(client, **options).json()
    assert bytes(token for token in answer["prompt_token_ids"] if token < 256).endswith(b"assistant\nab  ")
    echoed = ask(client, **options, echo=True).json()
    assert echoed["choices"][0]["message"]["content"] == "ab  " + answer["choices"][0]["message"]["content"]
    with client.stream(
        "POST", CHAT, json={"messages": messages, "max_tokens": 4, "echo": True, "stream": True}
    ) as stream:
        assert b'"content":"ab  "' in stream.read()


def test_prompts_are_shortened(client: httpx.Client) -> None:
    answer = ask(client, truncate_prompt_tokens=5, return_token_ids=True).json()
    assert len(answer["prompt_token_ids"]) == 5 and answer["usage"]["prompt_tokens"] == 5
    body = {"prompt": "abcdefgh", "max_tokens": 2, "truncate_prompt_tokens": 3, "echo": True}
    assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == "fghfg"
    body = {"prompt": "x" * 5000, "max_tokens": 16, "truncate_prompt_tokens": -1}
    assert client.post("/v1/completions", json=body).json()["usage"]["prompt_tokens"] == 4096 - 16


def test_a_template_worker_that_is_killed_is_replaced(client: httpx.Client, server: RunningServer) -> None:
    """Killed while it is idle or at work, by whomever: the request is answered by the next one."""
    import psutil

    for _ in range(3):
        assert ask(client).status_code == 200
        for child in psutil.Process(server.process.pid).children():
            if "template_worker" in " ".join(child.cmdline()):
                child.kill()
        assert ask(client).status_code == 200
