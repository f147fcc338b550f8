"""The shapes of answers, closed: what an answer holds beyond its shape is found by the tests that read answers by it.

Small answers are made as these; large ones are put together as maps, for speed.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

FinishReason = Literal["stop", "length", "tool_calls", "abort", "error"]
ModelObject = Literal["model"]


class Answer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A closed object."""


# errors


class ErrorDetail(Answer):
    """What is wrong. param: the field it is about. code: a word for programs, else the status."""

    message: str
    type: str
    param: str | None
    code: str | int


class ErrorAnswer(Answer):
    """An error of every route but those of Messages."""

    error: ErrorDetail


class MessageErrorDetail(Answer):
    """What is wrong."""

    type: str
    message: str


class MessageErrorAnswer(Answer):
    """An error of Messages."""

    type: Literal["error"]
    error: MessageErrorDetail


# the server


class Health(Answer):
    """status: ok, or what the engine does instead."""

    status: str


class Readiness(Answer):
    """The server takes requests for this model."""

    status: Literal["ready"]
    model: str


class Version(Answer):
    """Of tenon-core."""

    version: str


class Model(Answer):
    """A name under which the model is served. created: when the server started, in seconds since 1970."""

    id: str
    created: int
    object: ModelObject = "model"
    owned_by: Literal["tenon"] = "tenon"


class ListedModel(Model, kw_only=True):
    """The same in the list. max_model_len: tokens, null before the engine has said it."""

    root: str
    parent: None = None
    max_model_len: int | None


class ModelList(Answer):
    """All names."""

    data: list[ListedModel]
    object: Literal["list"] = "list"


class Tokens(Answer):
    """Token ids of a text."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class Detokenized(Answer):
    """The text of token ids."""

    prompt: str


class EngineAnswer(Answer):
    """What the engine does now."""

    status: str
    model: str
    version: str
    platform: str
    max_model_len: int | None
    max_num_seqs: int | None
    block_size: int | None
    parsers: dict[str, str]
    stats: dict[str, int] | None
    kernels: list[dict[str, str | int]]
    start_seconds: dict[str, float]


# generated text


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
    """A piece of a stream. prompt_token_ids, prompt_text: in the first one."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET


# vectors, labels, scores

Vector = list[float] | str  # numbers, or float32 little-endian as base64


class Embedding(Answer):
    """One input's vector."""

    object: Literal["embedding"]
    index: int
    embedding: Vector


class Pooled(Answer):
    """What the head gives of one input, or of each of its tokens."""

    object: Literal["pooling"]
    index: int
    data: list[float | list[float]] | str


class Label(Answer):
    """One input's best label, and the scores of all."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Score(Answer):
    """One pair's."""

    object: Literal["score"]
    index: int
    score: float


class ListAnswer(Answer):
    """What all of them share."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    usage: Usage


class EmbeddingAnswer(ListAnswer):
    """Vectors, in the inputs' order."""

    data: list[Embedding]


class PoolingAnswer(ListAnswer):
    """What the head gives, in the inputs' order."""

    data: list[Pooled]


class ClassifyAnswer(ListAnswer):
    """Labels, in the inputs' order."""

    data: list[Label]


class ScoreAnswer(ListAnswer):
    """Scores, in the pairs' order."""

    data: list[Score]


class RankedText(Answer):
    """A document's text."""

    text: str


class Ranked(Answer):
    """index: of the document in the request."""

    index: int
    relevance_score: float
    document: RankedText | UnsetType = UNSET


class RerankAnswer(Answer):
    """Documents, the best first."""

    id: str
    model: str
    usage: Usage
    results: list[Ranked]


# Messages


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


# Responses


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
