"""Between the messages of `inference.proto` and the JSON of the HTTP API. Values are not judged here: the API does."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from google.protobuf.message import Message as ProtoMessage

from tenon_platforms.errors import RequestError

from . import inference_pb2 as pb

PLAIN = (
    "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "n", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens",
)  # fmt: skip
LISTS = ("stop", "stop_token_ids", "allowed_token_ids", "bad_words")
STRUCTURED = {"json_schema": "json"}  # ours -> the API's; the others have one name
T = TypeVar("T", pb.GenerateResponse, pb.GenerateChunk)
C = TypeVar("C", pb.ChatResponse, pb.ChatChunk)


def generate_body(request: pb.GenerateRequest, *, stream: bool) -> dict[str, Any]:
    """POST /v1/completions."""
    kind = request.WhichOneof("prompt")
    if kind is None:
        raise RequestError("prompt is needed: set text or token_ids", param="prompt")
    prompt: Any = request.text if kind == "text" else list(request.token_ids.ids)
    return {"prompt": prompt, **given(request, "echo", "logprobs"), **_shared(request, stream=stream)}


def chat_body(request: pb.ChatRequest, *, stream: bool) -> dict[str, Any]:
    """POST /v1/chat/completions."""
    body: dict[str, Any] = {"messages": [_message(one) for one in request.messages], **_shared(request, stream=stream)}
    body.update(given(request, "parallel_tool_calls", "include_reasoning"))
    if request.tools:
        body["tools"] = [{"type": "function", "function": _function(one)} for one in request.tools]
    kind = request.WhichOneof("choice")
    if kind == "tool_choice":
        body["tool_choice"] = request.tool_choice
    elif kind == "tool_name":
        body["tool_choice"] = {"type": "function", "function": {"name": request.tool_name}}
    if request.chat_template_kwargs:
        body["chat_template_kwargs"] = _json("chat_template_kwargs", request.chat_template_kwargs)
    return body


def _shared(request: pb.GenerateRequest | pb.ChatRequest, *, stream: bool) -> dict[str, Any]:
    body: dict[str, Any] = {**_sampling(request.sampling), **given(request, "priority"), "return_token_ids": True}
    body.update({name: getattr(request, name) for name in ("model", "cache_salt") if getattr(request, name)})
    if stream:
        body.update(stream=True, stream_options={"include_usage": True})
    return body


def given(message: ProtoMessage, *names: str) -> dict[str, Any]:
    """The optional fields that are set. Raises `RequestError` for a number that JSON does not know."""
    found = {name: getattr(message, name) for name in names if message.HasField(name)}
    for name, value in found.items():
        _finite(name, value)
    return found


def _finite(name: str, value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise RequestError(f"{name} is {value}: a finite number is expected", param=name)


def _sampling(sampling: pb.Sampling) -> dict[str, Any]:
    body = given(sampling, *PLAIN)
    body.update({name: list(getattr(sampling, name)) for name in LISTS if getattr(sampling, name)})
    if sampling.logit_bias:
        for bias in sampling.logit_bias.values():
            _finite("logit_bias", bias)
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if sampling.HasField("structured_output"):
        structured = sampling.structured_output
        kind = structured.WhichOneof("kind")
        body["structured_outputs"] = {}  # which the API refuses
        if kind is not None:
            value: Any = list(structured.choice.texts) if kind == "choice" else getattr(structured, kind)
            body["structured_outputs"] = {STRUCTURED.get(kind, kind): value}
    return body


def _message(message: pb.Message) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        found["tool_call_id"] = message.tool_call_id
    if message.reasoning:
        found["reasoning_content"] = message.reasoning
    return found


def _function(tool: pb.Tool) -> dict[str, Any]:
    found: dict[str, Any] = {"name": tool.name}
    if tool.description:
        found["description"] = tool.description
    if tool.parameters:
        found["parameters"] = _json("tools", tool.parameters)
    return found


def _json(param: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RequestError(f"{param} holds a text that is not valid JSON", param=param) from None


# answers


def fill_text(answer: T, found: Mapping[str, Any]) -> T:
    """A completion, or a piece of one, as a message."""
    answer.id, answer.model = found["id"], found["model"]
    for choice in found["choices"]:
        made = answer.choices.add(
            index=choice["index"],
            text=choice["text"],
            token_ids=choice.get("token_ids") or (),
            finish_reason=choice["finish_reason"] or "",
            stop_reason=_reason(choice),
        )
        if choice.get("logprobs"):
            made.logprobs.tokens.extend(choice["logprobs"]["tokens"])
            made.logprobs.logprobs.extend(
                math.nan if one is None else one for one in choice["logprobs"]["token_logprobs"]
            )
    _usage(answer, found)
    return answer


def fill_chat(answer: C, found: Mapping[str, Any]) -> C:
    """A chat's answer, or a piece of one, as a message."""
    answer.id, answer.model = found["id"], found["model"]
    for choice in found["choices"]:
        said = choice.get("message") or choice.get("delta") or {}
        made = answer.choices.add(
            index=choice["index"],
            token_ids=choice.get("token_ids") or (),
            finish_reason=choice["finish_reason"] or "",
            stop_reason=_reason(choice),
        )
        made.message.role = said.get("role") or ""
        made.message.content = said.get("content") or ""
        made.message.reasoning = said.get("reasoning_content") or ""
        made.message.tool_calls.extend(_calls(said.get("tool_calls") or ()))
    _usage(answer, found)
    return answer


def _calls(calls: Iterable[Mapping[str, Any]]) -> Iterable[pb.ToolCall]:
    for place, call in enumerate(calls):
        function = call.get("function") or {}
        yield pb.ToolCall(
            index=call.get("index", place),
            id=call.get("id") or "",
            name=function.get("name") or "",
            arguments=function.get("arguments") or "",
        )


def _reason(choice: Mapping[str, Any]) -> str:
    reason = choice.get("stop_reason")
    return "" if reason is None else str(reason)


def _usage(answer: pb.GenerateResponse | pb.GenerateChunk | pb.ChatResponse | pb.ChatChunk, found: Any) -> None:
    usage = found.get("usage")
    if usage:
        answer.usage.prompt_tokens = usage["prompt_tokens"]
        answer.usage.completion_tokens = usage["completion_tokens"]
        answer.usage.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
