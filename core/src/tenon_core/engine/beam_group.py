"""`BeamGroup`: the beams of one request, and which tokens they go on with. Knows scores and tokens, no rows or blocks.

The choice is that of Transformers' `_beam_search` (greedy, one prompt): a text's score is the sum of its tokens'
log-probabilities over length^length_penalty.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tenon_core.sampling.params import SamplingParams

NOWHERE = -1e9  # the score of beams that are not there yet


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished text: its score, its output tokens with their log-probabilities, the token that ended it or -1."""

    score: float
    steps: tuple[tuple[int, float, int], ...]  # (token, log-probability, rank)
    stop_token: int


@dataclass(slots=True, kw_only=True)
class BeamGroup:
    """The beams of one request. ends: tokens that finish one. limit: length at which all do."""

    params: SamplingParams
    request_id: int
    num_prompt: int
    limit: int
    ends: frozenset[int]
    slots: list[Any] = field(default_factory=list)  # the `Sequence` of each beam
    scores: list[float] = field(default_factory=list)
    steps: list[tuple[tuple[int, float, int], ...]] = field(default_factory=list)
    finished: list[Hypothesis] = field(default_factory=list)
    landed: dict[int, list[tuple[int, float, int]]] = field(default_factory=dict)  # slot -> its best next tokens

    def __post_init__(self) -> None:
        width = self.params.beam_width
        self.scores = [0.0] + [NOWHERE] * (width - 1)
        self.steps = [()] * width

    @property
    def num_candidates(self) -> int:
        """Tokens wanted of each row: as many as beams, and as many again as may end one."""
        return self.params.beam_width + len(self.ends)

    def lost(self, slot: int) -> None:
        """The row of a beam was given up: it is computed again, and lands again."""
        self.landed.pop(slot, None)

    def choose(self) -> list[tuple[int, tuple[int, float, int], float]] | None:
        """(parent slot, its next token, score) of every beam of the next step; None: the search has ended."""
        width, made = self.params.beam_width, len(self.steps[0]) + 1
        at_limit = self.num_prompt + made >= self.limit
        candidates = [
            (self.scores[slot] + step[1], slot, step) for slot, steps in self.landed.items() for step in steps
        ]
        candidates.sort(key=lambda one: (-one[0], one[1], one[2][2]))
        self.landed = {}
        running: list[tuple[int, tuple[int, float, int], float]] = []
        for place, (score, slot, step) in enumerate(candidates):
            is_end = step[0] in self.ends
            if (is_end or at_limit) and place < width:
                self._finish(score, (*self.steps[slot], step), step[0] if is_end else -1)
            if not is_end and len(running) < width:
                running.append((slot, step, score))
        if at_limit or self._is_over(running[0][2], made):
            return None
        return running

    def _finish(self, score: float, steps: tuple[tuple[int, float, int], ...], stop_token: int) -> None:
        found = Hypothesis(score / len(steps) ** self.params.length_penalty, steps, stop_token)
        self.finished = sorted((*self.finished, found), key=lambda one: -one.score)[: self.params.beam_width]

    def _is_over(self, best: float, made: int) -> bool:
        """Whether no running beam can still be among the best, as `early_stopping` says."""
        params = self.params
        if len(self.finished) < params.beam_width:
            return False
        if params.early_stopping is True:
            return True
        longest = self.limit - self.num_prompt
        length = longest if params.early_stopping == "never" and params.length_penalty > 0 else made
        possible: float = best / length**params.length_penalty
        return possible <= self.finished[-1].score
