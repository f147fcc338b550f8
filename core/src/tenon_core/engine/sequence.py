"""A sequence: one sample of one request, from submission to its end.

While it runs, its numbers are a row of the row table; this object holds what is touched only when something changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from tenon_core.sampling.params import SamplingParams

from .beam_group import BeamGroup
from .messages import GenerateRequest, TokenLogprobs, sequence_key

Int32 = npt.NDArray[np.int32]
NO_ROW = -1


class SequenceState(Enum):
    """WAITING: in the queue. UNBORN: a sample that starts when its first sibling's prompt is computed. PREFILLING,
    DECODING: has a row. LAST_TOKEN: nothing more to schedule, its last token is in flight. PREEMPTED: goes back to the
    queue once its steps in flight have landed. ENDED: its row is freed once they have. HELD: a beam whose next token
    the host has not chosen yet.
    """

    WAITING = "waiting"
    UNBORN = "unborn"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    LAST_TOKEN = "last token"
    PREEMPTED = "preempted"
    ENDED = "ended"
    HELD = "held"


RUNNING = frozenset((SequenceState.PREFILLING, SequenceState.DECODING, SequenceState.LAST_TOKEN, SequenceState.HELD))


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One sample. tokens: prompt and known output while it has no row (a row's are in the table)."""

    # filled at submission
    request: GenerateRequest
    sample: int
    order: int  # position in the order of arrival
    limit: int  # length at which it ends
    tokens: Int32
    num_prompt: int
    root: bytes  # hash that its prefix starts from
    arrived: float = 0.0  # time.monotonic()
    siblings: list[Sequence] = field(default_factory=list)  # UNBORN samples of the first one
    beams: BeamGroup | None = None  # of a beam search, whose beam number `sample` it is

    # filled by the scheduler
    state: SequenceState = SequenceState.WAITING
    row: int = NO_ROW
    hashes: list[bytes] = field(default_factory=list)  # of its full blocks, as far as known
    num_published: int = 0  # full blocks the prefix cache knows of
    num_cached: int = -1  # prompt tokens found in the prefix cache, -1: not looked up yet
    is_suspect: bool = False  # was in a step that failed: runs alone until one succeeds
    is_tainted: bool = False  # its row was in a step that failed: what its blocks hold is unknown
    is_announced: bool = False  # its PromptInfo went out

    # filled by the engine as it launches a step
    queued_seconds: float | None = None  # until its first row

    # filled by output routing
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    vectors: npt.NDArray[np.float32] | None = None  # of a pooling request, as far as they are known

    @property
    def key(self) -> int:
        """The key clients know it by."""
        return sequence_key(self.request.id, self.sample)

    @property
    def params(self) -> SamplingParams:
        """The request's sampling parameters."""
        return self.request.params

    @property
    def needs_every_position(self) -> bool:
        """Whether something is wanted of each prompt token, so that none may come from the prefix cache."""
        pooling = self.request.pooling
        return self.params.prompt_logprobs is not None or (pooling is not None and pooling.per_token)

    @property
    def is_running(self) -> bool:
        """Whether it holds a row and has not ended."""
        return self.state in RUNNING

    @property
    def rank(self) -> tuple[int, int]:
        """Whom to serve first: lower priority numbers, then earlier arrivals."""
        return (self.request.priority, self.order)
