"""A sequence's sampling parameters as the runner wants them: one line of int32, and lists for what is rare."""

from __future__ import annotations

from collections.abc import Sequence as Ids

import numpy as np

from tenon_core.execution.delta import RowStart
from tenon_platforms.batch import FLOAT_COLUMNS, NUM_ROW_COLUMNS, RowColumn
from tenon_platforms.noise import sequence_key
from tenon_platforms.shapes import SamplingMode

from .sequence import Sequence


def sampling_mode(sequence: Sequence) -> SamplingMode:
    """What the sampler must be able to do for this sequence."""
    params = sequence.params
    noise = not params.is_greedy
    wanted = [-1 if value is None else value for value in (params.logprobs, params.prompt_logprobs)]
    if sequence.beams is not None:
        return SamplingMode(num_logprobs=max(*wanted, sequence.beams.num_candidates))
    return SamplingMode(
        noise=noise,
        filters=noise and (params.top_k > 0 or params.top_p < 1 or params.min_p > 0),
        penalties=params.needs_penalties,
        edits=bool(params.logit_bias) or params.allowed_token_ids is not None or bans_ends(sequence),
        grammar=params.needs_mask,
        num_logprobs=max(wanted),
    )


def bans_ends(sequence: Sequence) -> bool:
    """Whether end tokens are banned for a while by logit edits; a grammar's mask does that itself."""
    return sequence.params.min_tokens > 0 and sequence.params.structured_outputs is None


def row_start(sequence: Sequence, tokens: np.ndarray, eos_token_ids: Ids[int]) -> RowStart:
    """The `RowStart` of a sequence that begins or resumes with these known tokens."""
    params = sequence.params
    line = np.zeros(NUM_ROW_COLUMNS, dtype=np.int32)
    floats = line.view(np.float32)
    values = (
        0.0 if params.is_greedy else params.temperature,
        params.top_p,
        params.min_p,
        params.repetition_penalty,
        params.presence_penalty,
        params.frequency_penalty,
    )
    for column, value in zip(FLOAT_COLUMNS, values, strict=True):
        floats[column] = value
    line[RowColumn.TOP_K] = max(params.top_k, 0)
    assert params.seed is not None, "the client fills in the seed"
    key = np.array(sequence_key(params.seed, sequence.sample), dtype=np.uint32).view(np.int32)
    line[RowColumn.NOISE_KEY0], line[RowColumn.NOISE_KEY1] = key
    line[RowColumn.EDIT_UNTIL] = sequence.num_prompt + params.min_tokens
    prompt, output = tokens[: sequence.num_prompt], tokens[sequence.num_prompt :]
    stops = tuple({*eos_token_ids, *params.stop_token_ids}) if bans_ends(sequence) else ()
    return RowStart(
        row=sequence.row,
        params=line.tobytes(),
        counted=(prompt.tobytes(), output.tobytes()) if params.needs_penalties else None,
        bias=params.logit_bias,
        allowed=params.allowed_token_ids,
        banned=stops,
    )


class ModeUnion:
    """The union of running sequences' modes; recomputed only when a kind of mode comes or goes."""

    def __init__(self) -> None:
        self._counts: dict[SamplingMode, int] = {}
        self.mode = SamplingMode()

    def add(self, mode: SamplingMode) -> None:
        """A sequence of this mode runs."""
        self._counts[mode] = self._counts.get(mode, 0) + 1
        if self._counts[mode] == 1:
            self.mode = self.mode.union(mode)

    def remove(self, mode: SamplingMode) -> None:
        """One less."""
        self._counts[mode] -= 1
        if self._counts[mode] == 0:
            del self._counts[mode]
            self.mode = SamplingMode()
            for other in self._counts:
                self.mode = self.mode.union(other)
