"""Answers of Messages."""

from __future__ import annotations

from typing import Any, Literal

from .base import Answer


class TextBlock(Answer, tag="text"):
    """Text."""

    text: str
    citations: None


class ThinkingBlock(Answer, tag="thinking"):
    """A thought."""

    thinking: str
    signature: str


class ToolUseBlock(Answer, tag="tool_use"):
    """A call."""

    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(Answer):
    """Counts of tokens."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    service_tier: Literal["standard"]


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class MessageAnswer(Answer):
    """A whole message."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(Answer):
    """Of a prompt."""

    input_tokens: int
