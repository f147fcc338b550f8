"""Answers of Responses."""

from __future__ import annotations

from typing import Any, Literal

from .base import Answer
from .texts import ChatToken


class OutputText(Answer, tag="output_text"):
    """Text of a message."""

    text: str
    annotations: list[Any]
    logprobs: list[ChatToken]


class ReasoningText(Answer, tag="reasoning_text"):
    """Text of a thought."""

    text: str


ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputMessage(Answer, tag="message"):
    """What was said."""

    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class OutputReasoning(Answer, tag="reasoning"):
    """What was thought."""

    id: str
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningText]
    encrypted_content: None


class OutputCall(Answer, tag="function_call"):
    """What is called."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class ResponseError(Answer):
    """Why it failed."""

    code: str
    message: str


class IncompleteDetails(Answer):
    """Why it is cut."""

    reason: str


class ResponseUsage(Answer):
    """Counts of tokens."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseAnswer(Answer):
    """A response at any moment. Fields of the request are told as they were given."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[OutputMessage | OutputReasoning | OutputCall]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    user: str | None
    metadata: dict[str, str]


class InputTokens(Answer):
    """Of a request that is not run."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class DeletedResponse(Answer):
    """It is forgotten."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputItems(Answer):
    """A page of a response's input."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
