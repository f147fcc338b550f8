"""The one helper that says what "the same greedy tokens" means; every test that compares tokens uses it.

Both sides run in float32 on checkpoints initialised wide. A token may differ from the reference's best only where the
reference cannot tell the two apart: where its best logit leads ours by less than `multiple` times the error that was
measured of it, float32 against float64. Every position is compared, each on the tokens that we chose before it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float64]  # [tokens, vocab]
LogitsFn = Callable[[Sequence[int]], Logits]
MULTIPLE = 16.0  # of the measured error
FLOOR = 1e-5  # least error assumed, relative to the largest logit


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Where reference logits come from: narrow in float32, wide in float64; both give every position's logits."""

    narrow: LogitsFn
    wide: LogitsFn


def hf_reference(model: Any) -> Reference:
    """The reference that a Transformers model is, with a copy of it in float64."""
    return Reference(narrow=logits_of(model.float().eval()), wide=logits_of(copy.deepcopy(model).double().eval()))


def sampled_reference(reference: Reference, *, seed: int, sample: int, temperature: float) -> Reference:
    """Whose best tokens are those that a sample gets: its logits by its temperature, and the contract's noise."""
    from tenon_platforms.noise import gumbel, sequence_key, token_bits

    key = sequence_key(seed, sample)

    def noisy(logits: LogitsFn) -> LogitsFn:
        def with_noise(tokens: Sequence[int]) -> Logits:
            found = logits(tokens) / temperature
            chosen = range(1, len(found) + 1)  # the position of the token that each line chooses
            return found + np.stack([gumbel(token_bits(key, position, found.shape[1])) for position in chosen])

        return with_noise

    return Reference(narrow=noisy(reference.narrow), wide=noisy(reference.wide))


def logits_of(model: Any) -> LogitsFn:
    """Every position's logits of a Transformers model, in its own type."""
    import torch

    def logits(tokens: Sequence[int]) -> Logits:
        with torch.no_grad():
            found = model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0]
        wide: Logits = found.double().numpy()
        return wide

    return logits


def assert_greedy_equal(
    ours: Sequence[int], reference: Reference, prompt: Sequence[int], *, multiple: float = MULTIPLE, label: str = ""
) -> int:
    """Assert that `ours` are the greedy tokens after `prompt`; returns how many were near ties decided otherwise."""
    ours, prompt = list(ours), list(prompt)
    assert ours, f"{label}: no tokens to compare"
    first = len(prompt) - 1
    sequence = [*prompt, *ours[:-1]]
    logits, exact = reference.narrow(sequence)[first:], reference.wide(sequence)[first:]
    error = np.abs(logits - exact).max(axis=1)  # [tokens]
    bound = multiple * np.maximum(error, FLOOR * np.abs(exact).max(axis=1))
    lead = exact.max(axis=1) - exact[np.arange(len(ours)), ours]
    wrong = np.flatnonzero(lead > bound)
    if len(wrong):
        place = int(wrong[0])
        best = int(exact[place].argmax())
        raise AssertionError(
            f"{label}: token {place} of {len(ours)} after a prompt of {len(prompt)} is {ours[place]}, the reference"
            f" says {best}, whose logit leads by {lead[place]:.3g}; allowed is {bound[place]:.3g} ({multiple:g} times"
            f" the measured error); {len(wrong)} tokens differ"
        )
    return int((lead > 0).sum())


def assert_wide(reference: Reference, prompt: Sequence[int], *, share: float = 0.9) -> None:
    """Assert that the reference's gaps are wide enough for a comparison of tokens to mean something."""
    logits, exact = reference.narrow(prompt), reference.wide(prompt)
    best = np.sort(exact, axis=1)[:, -2:]
    gap, error = best[:, 1] - best[:, 0], np.abs(logits - exact).max()
    assert (gap > MULTIPLE * error).mean() >= share, "the checkpoint's logits are too close to each other"
