"""The further fields of this field's servers: served or refused, and what they do. OpenAI's: `test_published_types`."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from running_server import RunningServer

from tenon_core.serving.protocol import NOT_YET, REFUSED, ChatFields, CompletionFields

pytestmark = pytest.mark.e2e
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
# vLLM's fields beyond OpenAI's, as its completions and its chat requests list them (read in its repository, 2026-11).
FURTHER = (
    "use_beam_search", "top_k", "min_p", "repetition_penalty", "watermarking", "length_penalty", "stop_token_ids",
    "include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens", "spaces_between_special_tokens",
    "truncate_prompt_tokens", "truncation_side", "prompt_logprobs", "logprob_token_ids", "allowed_token_ids",
    "bad_words", "add_special_tokens", "structured_outputs", "priority", "request_id", "session_id",
    "return_tokens_as_token_ids", "return_token_ids", "routed_experts_prompt_start", "return_token_offsets",
    "return_mm_kwargs", "cache_salt", "kv_transfer_params", "ec_transfer_params", "vllm_xargs",
    "repetition_detection", "stream_interval", "thinking_token_budget",
)  # fmt: skip
OF_CHAT = (
    "echo", "add_generation_prompt", "continue_final_message", "documents", "chat_template", "chat_template_kwargs",
    "media_io_kwargs", "mm_processor_kwargs", "include_reasoning", "return_prompt_text",
)  # fmt: skip
OF_COMPLETIONS = ("prompt_embeds", "response_format")


@pytest.mark.parametrize(("model", "names"), [(ChatFields, OF_CHAT), (CompletionFields, OF_COMPLETIONS)])
def test_no_further_field_is_unknown(model: Any, names: tuple[str, ...]) -> None:
    assert not {*FURTHER, *names} - {*model.model_fields, *NOT_YET, *REFUSED}


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
        {"session_id": "s", "thinking_token_budget": -1, "return_mm_kwargs": True, "vllm_xargs": {}},
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
        ({"truncation_side": "right"}, "truncation_side", "truncate_prompt_tokens"),
        ({"stream_interval": 0}, "stream_interval", "greater"),
        ({"logprob_token_ids": [5]}, "logprob_token_ids", "not available"),
        ({"repetition_detection": {"max_pattern_size": 5}}, "repetition_detection", "not available"),
        ({"thinking_token_budget": -2}, "thinking_token_budget", "-1"),
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
    body["truncation_side"] = "right"
    assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == "abcab"
    body = {"prompt": "x" * 5000, "max_tokens": 16, "truncate_prompt_tokens": -1}
    assert client.post("/v1/completions", json=body).json()["usage"]["prompt_tokens"] == 4096 - 16


def pieces(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    lines = client.post(path, json={**body, "stream": True}).text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line and line != "data: [DONE]"]


def test_tokens_are_told_as_ids(client: httpx.Client) -> None:
    asked = {"return_tokens_as_token_ids": True, "max_tokens": 2}
    text = {**asked, "prompt": "ab", "logprobs": 2, "echo": True}
    found = client.post("/v1/completions", json=text).json()["choices"][0]["logprobs"]
    assert found["tokens"] == ["token_id:97", "token_id:98", "token_id:97", "token_id:98"]
    assert found["text_offset"] == [0, 1, 2, 3] and set(found["top_logprobs"][2]) == {"token_id:97", "token_id:98"}
    talk = {**asked, "messages": HELLO, "logprobs": True, "top_logprobs": 1}
    first, second = client.post(CHAT, json=talk).json()["choices"][0]["logprobs"]["content"]
    assert (first["token"], second["token"]) == ("token_id:257", "token_id:117") and second["bytes"] == [117]
    assert second["top_logprobs"][0]["token"] == "token_id:117"
    told = [one["choices"][0]["logprobs"] for one in pieces(client, CHAT, talk)]
    assert [one["token"] for each in told if each for one in each["content"]] == ["token_id:257", "token_id:117"]


def test_the_prompt_is_told_beside_the_answer(client: httpx.Client) -> None:
    asked = {"messages": HELLO, "max_tokens": 2, "return_prompt_text": True, "return_token_ids": True, "n": 2}
    asked["prompt_logprobs"] = 1
    whole = client.post(CHAT, json=asked).json()
    assert "user\nhi" in whole["prompt_text"] and "assistant" in whole["prompt_text"]
    first, *others = pieces(client, CHAT, asked)
    assert (first["prompt_text"], first["prompt_token_ids"]) == (whole["prompt_text"], whole["prompt_token_ids"])
    assert first["prompt_logprobs"] == whole["prompt_logprobs"] and whole["prompt_logprobs"][0] is None
    assert len(whole["prompt_logprobs"]) == len(whole["prompt_token_ids"])
    assert others and not [name for one in others for name in one if name.startswith("prompt_")]
    assert "prompt_text" not in ask(client).json()


def test_a_stream_in_larger_pieces(client: httpx.Client) -> None:
    for path, prompt in (("/v1/completions", {"prompt": "abc"}), (CHAT, {"messages": HELLO})):
        body = {**prompt, "max_tokens": 64, "ignore_eos": True}
        one_by_one, larger = (pieces(client, path, {**body, **more}) for more in ({}, {"stream_interval": 16}))
        assert len(larger) < 12 < len(one_by_one), (len(larger), len(one_by_one))


def test_a_template_worker_that_is_killed_is_replaced(client: httpx.Client, server: RunningServer) -> None:
    """Killed while it is idle or at work, by whomever: the request is answered by the next one."""
    import psutil

    for _ in range(3):
        assert ask(client).status_code == 200
        for child in psutil.Process(server.process.pid).children():
            if "template_worker" in " ".join(child.cmdline()):
                child.kill()
        assert ask(client).status_code == 200


def test_tokens_of_a_message_to_go_on_with(client: httpx.Client) -> None:
    """As the chat reads it."""
    begun = [*HELLO, {"role": "assistant", "content": "abc"}]
    found = client.post("/tokenize", json={"messages": begun, "continue_final_message": True}).json()["tokens"]
    read = ask(client, messages=begun, continue_final_message=True, return_token_ids=True).json()["prompt_token_ids"]
    assert found == read and found[-3:] == [97, 98, 99]
    both = {"continue_final_message": True, "add_generation_prompt": True}
    assert client.post("/tokenize", json={"messages": begun, **both}).status_code == 400


def test_a_model_is_told_as_in_the_list(client: httpx.Client) -> None:
    (listed,) = client.get("/v1/models").json()["data"]
    assert client.get("/v1/models/fake").json() == listed and listed["max_model_len"] == 4096
