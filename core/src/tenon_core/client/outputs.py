"""What a request gives back: `RequestOutput` and `CompletionOutput`, under the field names this field's users know."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """One token's log-probability at one position. rank: 1 is the best. decoded_token: its own text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PositionLogprobs = dict[int, Logprob]  # token id -> its log-probability; the chosen token first


@dataclass(slots=True, kw_only=True)
class RequestMetrics:
    """Clock readings of one request in seconds (time.monotonic); None where it has not come to that.

    queued_seconds: from its arrival in the engine until it ran.
    """

    arrival_time: float
    queued_seconds: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One sample of a request. stop_reason: the stop string or stop token id that ended it, or None."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        """Whether this sample has ended."""
        return self.finish_reason is not None


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """One prompt with its samples. prompt is None where token ids were given."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    finished: bool = False
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None
