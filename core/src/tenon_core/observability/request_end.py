"""What is measured of a request once it has ended, in seconds and tokens. Knows neither the engine nor any metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnd:
    """Times count from the request's arrival; None where it has not come to that.

    queued_seconds: until it ran. num_cached: of the prompt, found in the prefix cache. num_outputs: of each sample.
    """

    seconds: float
    queued_seconds: float | None = None
    first_token_after: float | None = None
    num_prompt: int
    num_cached: int = 0
    num_outputs: Sequence[int]
    max_tokens: int | None = None
