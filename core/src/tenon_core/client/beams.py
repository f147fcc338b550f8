"""Beam search as `LLM.beam_search` offers it: parameters and results under the names this field's users know."""

from __future__ import annotations

from dataclasses import dataclass

from tenon_core.sampling.params import SamplingParams

from .outputs import PositionLogprobs, RequestOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """beam_width beams for at most max_tokens. length_penalty, early_stopping: as in `SamplingParams`."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False

    def sampling(self) -> SamplingParams:
        """What the engine is asked. Raises `RequestError` for a value out of range."""
        return SamplingParams(
            n=self.beam_width,
            beam_width=self.beam_width,
            max_tokens=self.max_tokens,
            temperature=0.0,
            ignore_eos=self.ignore_eos,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
            stop_token_ids=self.stop_token_ids,
            include_stop_str_in_output=self.include_stop_str_in_output,
            logprobs=0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchSequence:
    """One continuation. tokens: its ids, an end token included. cum_logprob: their sum; score: what it is ranked by."""

    tokens: list[int]
    text: str
    cum_logprob: float
    score: float
    logprobs: list[PositionLogprobs]
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchOutput:
    """One prompt's continuations, the best first."""

    prompt_token_ids: list[int]
    sequences: list[BeamSearchSequence]


def beam_output(output: RequestOutput, params: BeamSearchParams) -> BeamSearchOutput:
    """From a finished request."""
    sequences = []
    for one in output.outputs:
        total = one.cumulative_logprob or 0.0
        sequences.append(
            BeamSearchSequence(
                tokens=one.token_ids,
                text=one.text,
                cum_logprob=total,
                score=total / max(len(one.token_ids), 1) ** params.length_penalty,
                logprobs=one.logprobs or [],
                finish_reason=one.finish_reason,
                stop_reason=one.stop_reason,
            )
        )
    return BeamSearchOutput(prompt_token_ids=output.prompt_token_ids, sequences=sequences)
