"""What is said of every route: its request, its answer, and how it can fail. One entry a route, found by a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tenon_platforms.pools import Pool

from .. import answer_types as answers
from . import requests
from .requests import Body

JSON, EVENTS = "application/json", "text/event-stream"
ALWAYS = (400, 401, 403, 500, 503, 504)
OF_BODIES = (404, 408, 413, 415, 429)
QUERY = "query"


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """answer: a type, or None for text of `kind`. chunk: of the pieces that a stream is made of; Any: events.

    query: parameters by name with their schemas. fails: further statuses of errors.
    """

    summary: str
    body: Body | None = None
    answer: Any = None
    kind: str = JSON
    chunk: Any = None
    query: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    fails: tuple[int, ...] = ()
    bare: Mapping[int, Any] = field(default_factory=dict)  # statuses whose answer is no error, with its type


def _posted(summary: str, body: Body, answer: Any, chunk: Any = None) -> Described:
    return Described(summary=summary, body=body, answer=answer, chunk=chunk, fails=OF_BODIES)


RERANK = _posted("Documents by their score with a query", requests.RERANK, answers.RerankAnswer)
SCORE = _posted("How well pairs of texts belong together", requests.SCORE, answers.ScoreAnswer)
PAGE: dict[str, dict[str, Any]] = {
    "order": {"enum": ["asc", "desc"], "default": "desc"},
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    "after": {"type": "string"},
}
DESCRIBED: dict[str, Described] = {
    "POST /v1/completions": _posted(
        "Texts that go on from prompts", requests.COMPLETION, answers.CompletionAnswer, answers.CompletionAnswer
    ),
    "POST /v1/chat/completions": _posted(
        "A conversation's next message", requests.CHAT, answers.ChatAnswer, answers.ChatChunk
    ),
    "POST /v1/messages": _posted(
        "A conversation's next message, in Anthropic's API", requests.MESSAGE, answers.MessageAnswer, Any
    ),
    "POST /v1/messages/count_tokens": _posted("The tokens of a prompt", requests.COUNT, answers.TokenCount),
    "POST /v1/responses": _posted("A response", requests.RESPONSE, answers.ResponseAnswer, Any),
    "POST /v1/responses/input_tokens": _posted("The tokens of a prompt", requests.INPUT_TOKENS, answers.InputTokens),
    "GET /v1/responses/{identity}": Described(
        summary="A stored response",
        answer=answers.ResponseAnswer,
        fails=(404,),
        query={"stream": {"enum": ["false", "0"], "default": "false"}},
    ),
    "DELETE /v1/responses/{identity}": Described(
        summary="Forget a response", answer=answers.DeletedResponse, fails=(404,)
    ),
    "POST /v1/responses/{identity}/cancel": Described(
        summary="End a response that runs", answer=answers.ResponseAnswer, fails=(404,)
    ),
    "GET /v1/responses/{identity}/input_items": Described(
        summary="The input of a response, by pages", answer=answers.InputItems, fails=(404,), query=PAGE
    ),
    "POST /v1/embeddings": _posted("Vectors of texts", requests.EMBEDDING, answers.EmbeddingAnswer),
    "POST /pooling": _posted(
        "What the pooling head gives of texts or their tokens", requests.POOLING, answers.PoolingAnswer
    ),
    "POST /classify": _posted("Labels of texts", requests.CLASSIFY, answers.ClassifyAnswer),
    "POST /score": SCORE,
    "POST /v1/score": SCORE,
    "POST /rerank": RERANK,
    "POST /v1/rerank": RERANK,
    "POST /v2/rerank": RERANK,
    "GET /v1/models": Described(summary="What is served", answer=answers.ModelList),
    "GET /v1/models/{name:path}": Described(
        summary="A name under which the model is served", answer=answers.Model, fails=(404,)
    ),
    "GET /health": Described(
        summary="Whether the engine's loop runs; 503 where it does not",
        answer=answers.Health,
        bare={503: answers.Health},
    ),
    "GET /ready": Described(summary="Whether requests are taken", answer=answers.Readiness),
    "GET /metrics": Described(summary="Prometheus' text", kind="text/plain"),
    "GET /version": Described(summary="The version", answer=answers.Version),
    "GET /openapi.json": Described(summary="This description", answer=dict[str, Any]),
    "POST /tokenize": _posted("Token ids of a text or a conversation", requests.TOKENIZE, answers.Tokens),
    "POST /detokenize": _posted("The text of token ids", requests.DETOKENIZE, answers.Detokenized),
    "POST /sleep": Described(
        summary="Give the device's memory back: weights go to the host, the KV cache is dropped, requests wait",
        answer=answers.Asleep,
        fails=(404,),
        query={"level": {"enum": [1], "default": 1}},
    ),
    "POST /wake_up": Described(
        summary="Bring the memory back: of these pools, or of all",
        answer=answers.Asleep,
        fails=(404,),
        query={"tags": {"type": "array", "items": {"enum": [pool.value for pool in Pool]}}},
    ),
    "GET /is_sleeping": Described(summary="Whether memory is given back", answer=answers.Asleep),
    "GET /engine": Described(summary="What the engine does now", answer=answers.EngineAnswer),
}
