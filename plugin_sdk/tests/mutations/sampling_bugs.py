"""Bugs of samplers and log-probabilities."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from mutations.planting import Registry, wrap_run

from tenon_platforms.batch import Logprobs, RowColumn
from tenon_platforms.ops.sampling import SamplerSpec, TokenLogprobsSpec


def params(change: Any) -> Any:
    """A sampler that reads other parameters: change(params int32 [rows, columns], batch)."""

    def wrap(run: Any, spec: Any) -> Any:
        def bug(logits: Any, batch: Any) -> Any:
            lines = batch.params.clone()
            change(lines, batch)
            return run(logits, dataclasses.replace(batch, params=lines))

        return bug

    return wrap


def floats(lines: Any, column: int) -> Any:
    """A column of float32 bits, to be written."""
    return lines[:, column].view(torch.float32)


def top_p_inclusive(run: Any, spec: Any) -> Any:
    """The token that reaches top-p is dropped where it should stay."""

    def change(lines: Any, batch: Any) -> None:
        values = lines[:, RowColumn.TOP_P].contiguous().view(torch.float32)
        lines[:, RowColumn.TOP_P] = torch.where(values < 1, values * 0.5, values).view(torch.int32)

    return params(change)(run, spec)


def ties_to_the_last(run: Any, spec: Any) -> Any:
    def bug(logits: Any, batch: Any) -> Any:
        if batch.mode.noise or batch.mode.edits or batch.mode.penalties or batch.mode.grammar:
            return run(logits, batch)
        return (logits.shape[1] - 1 - logits.flip(1).argmax(-1)).int()

    return bug


def top_k_off_by_one(lines: Any, batch: Any) -> None:
    lines[:, RowColumn.TOP_K] += (lines[:, RowColumn.TOP_K] > 0).int()


def noise_of_row(lines: Any, batch: Any) -> None:
    """The noise key is the row's place in the batch."""
    lines[:, RowColumn.NOISE_KEY0] = torch.arange(len(lines), dtype=torch.int32)


def temperature_ignored(lines: Any, batch: Any) -> None:
    values = lines[:, RowColumn.TEMPERATURE].contiguous().view(torch.float32)
    lines[:, RowColumn.TEMPERATURE] = torch.where(values > 0, 1.0, values).view(torch.int32)


def penalty_on_the_next_row(lines: Any, batch: Any) -> None:
    lines[:, RowColumn.COUNT_SLOT] = lines[:, RowColumn.COUNT_SLOT].roll(1)


def min_p_ignored(lines: Any, batch: Any) -> None:
    lines[:, RowColumn.MIN_P] = 0


def early_edits_late(lines: Any, batch: Any) -> None:
    lines[:, RowColumn.EDIT_UNTIL] += 1


def position_before(run: Any, spec: Any) -> Any:
    """Noise of the position before: a step's tokens repeat the last step's luck."""
    return lambda logits, batch: run(logits, dataclasses.replace(batch, positions=batch.positions - 1))


def grammar_words_swapped(run: Any, spec: Any) -> Any:
    def bug(logits: Any, batch: Any) -> Any:
        mask = batch.grammar_mask
        return run(logits, batch if mask is None else dataclasses.replace(batch, grammar_mask=mask.flip(1)))

    return bug


def counts_forgotten(run: Any, spec: Any) -> Any:
    return lambda logits, batch: run(logits, dataclasses.replace(batch, counts=batch.counts.clone()))


def half_logits(run: Any, spec: Any) -> Any:
    return lambda logits, batch: run(logits.bfloat16(), batch)


def rank_from_zero(run: Any, spec: Any) -> Any:
    def bug(logits: Any, tokens: Any, k: int) -> Logprobs:
        found: Logprobs = run(logits, tokens, k)
        return dataclasses.replace(found, rank=found.rank - 1)

    return bug


def ties_count_as_better(run: Any, spec: Any) -> Any:
    def bug(logits: Any, tokens: Any, k: int) -> Logprobs:
        found: Logprobs = run(logits, tokens, k)
        mine = logits.gather(1, tokens.long()[:, None])
        return dataclasses.replace(found, rank=(logits >= mine).sum(-1).int())

    return bug


def base_two(run: Any, spec: Any) -> Any:
    def bug(logits: Any, tokens: Any, k: int) -> Logprobs:
        found: Logprobs = run(logits, tokens, k)
        return dataclasses.replace(found, top=found.top * 1.442695)

    return bug


def register(to: Registry) -> None:
    """All of them."""
    for name, check, what, wrap in (
        ("ties-to-the-last", "L2/sampler/ties", "ties go to the highest id", ties_to_the_last),
        ("top-k-off-by-one", "L2/sampler/filter-ties", "one token too many", params(top_k_off_by_one)),
        ("top-p-half", "L2/sampler/filters", "top-p cuts too early", top_p_inclusive),
        ("min-p-ignored", "L2/distribution/min-p", "min-p not applied", params(min_p_ignored)),
        ("noise-of-row", "L2/sampler/noise", "noise depends on the place in the batch", params(noise_of_row)),
        ("noise-position", "L2/sampler/noise", "noise of another position", position_before),
        ("temperature-ignored", "L2/distribution/cool", "temperature 1 for all", params(temperature_ignored)),
        ("penalty-wrong-row", "L2/sampler/penalties", "penalties of the row before", params(penalty_on_the_next_row)),
        ("early-edits-late", "L2/sampler/edits", "bans last one token too long", params(early_edits_late)),
        ("grammar-words", "L2/sampler/grammar", "words of the mask reversed", grammar_words_swapped),
        ("counts-forgotten", "L2/sampler/penalties", "chosen tokens are not counted", counts_forgotten),
        ("half-logits", "L2/sampler/greedy", "logits rounded before the choice", half_logits),
    ):
        to.add(name, check, what, wrap_run(SamplerSpec, wrap))
    logprobs = "L2/token_logprobs/float32"
    for name, what, wrap in (
        ("rank-from-zero", "ranks begin at 0", rank_from_zero),
        ("rank-counts-ties", "equal tokens count as better", ties_count_as_better),
        ("logprobs-base-two", "logarithms to base two", base_two),
    ):
        to.add(name, logprobs, what, wrap_run(TokenLogprobsSpec, wrap))
