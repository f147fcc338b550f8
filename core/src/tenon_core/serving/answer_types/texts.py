"""Answers of completions and chat completions, whole and in pieces."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from .base import Answer

FinishReason = Literal["stop", "length", "tool_calls", "abort", "error"]


class CachedTokens(Answer):
    """cached_tokens: of the prompt, found in the prefix cache."""

    cached_tokens: int


class Usage(Answer):
    """Counts of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens | UnsetType = UNSET


class PromptToken(Answer):
    """A token's log-probability at a place of the prompt. rank: 1 is the most likely."""

    logprob: float
    rank: int
    decoded_token: str | None


PromptLogprobs = list[dict[str, PromptToken] | None] | None


class CompletionLogprobs(Answer):
    """Of each token: its text, log-probability, alternatives, and where its text begins."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Answer):
    """One text. index: prompt * n + sample."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionAnswer(Answer):
    """A whole answer; the pieces of a stream have the same shape, usage in some of them only."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class ChatTopToken(Answer):
    """An alternative. bytes: its text in UTF-8, which alone may be no whole character."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(ChatTopToken):
    """A token that was chosen."""

    top_logprobs: list[ChatTopToken]


class ChatLogprobs(Answer):
    """Of each token."""

    content: list[ChatToken]


class CalledFunction(Answer):
    """arguments: JSON; in a stream a piece of it."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCall(Answer):
    """A call. index: in a stream, where id, type and name come with its first piece only."""

    function: CalledFunction
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    index: int | UnsetType = UNSET


class ChatMessage(Answer):
    """The assistant's message. reasoning: the same text as reasoning_content."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(Answer):
    """One message."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET


class ChatAnswer(Answer):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET


class ChatDelta(Answer):
    """What is new of a message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChunkChoice(Answer):
    """A piece of one message."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Answer):
    """A piece of a stream. prompt_logprobs, prompt_token_ids, prompt_text: in the first one."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
