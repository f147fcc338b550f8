"""How a token is chosen, one row in float64: which may be chosen at all, and how far the best leads.

Rounding may decide what lies within the bound of a threshold: such tokens are neither surely kept nor surely dropped.
Follows the contract's text (`sampling_reference.py`, `noise.py`), and shares only the noise's bits with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tenon_platforms.noise import gumbel, token_bits

from ..cases.sampling import SamplingRow

Scores = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
U32 = 2.0**-24
NOISE_ERROR = 32 * U32  # of two logarithms, relative to 1 + |noise|


@dataclass(frozen=True, slots=True)
class Choice:
    """scores: what the best is taken of. error: of each. kept, possible: surely and perhaps in the running."""

    scores: Scores
    error: Scores
    kept: Mask
    possible: Mask

    def refuses(self, token: int) -> str | None:
        """Why this token cannot have been chosen, or None."""
        if not 0 <= token < len(self.scores):
            return f"token {token} is outside the vocabulary of {len(self.scores)}"
        if not self.possible[token]:
            return f"token {token} was filtered out"
        best = int(np.where(self.kept, self.scores, -np.inf).argmax())
        lead = self.scores[best] - self.scores[token]
        allowed = self.error[best] + self.error[token]
        if lead > allowed or (lead == 0 and allowed == 0 and best < token):
            return f"token {token} was chosen, but {best} leads by {lead:.3g}, and rounding explains {allowed:.3g}"
        return None


def edited(row: SamplingRow, logits: Scores) -> Scores:
    """After bias, bans and grammar."""
    scores: Scores = logits.copy()
    for token, value in row.bias.items():
        scores[token] += value
    if row.position < row.until:
        for token, value in row.early.items():
            scores[token] += value
    if row.allowed is not None:
        banned = np.ones(len(scores), dtype=bool)
        banned[row.allowed] = False
        scores[banned] = -np.inf
    return scores


def penalized(row: SamplingRow, scores: Scores) -> Scores:
    """After the penalties; repetition sees the prompt too."""
    scores = scores.copy()
    if row.prompt is None:
        return scores
    repetition, frequency, presence = (float(np.float32(v)) for v in (row.repetition, row.frequency, row.presence))
    for token in {*row.prompt, *row.output}:
        scores[token] = scores[token] / repetition if scores[token] > 0 else scores[token] * repetition
    for token in set(row.output):
        scores[token] -= frequency * row.output.count(token) + presence
    return scores


def choose(row: SamplingRow, logits: Scores, *, exact: bool) -> Choice:
    """The choice of one row. exact: no step of the arithmetic rounds, so ties are decided by the lowest id."""
    scores = penalized(row, edited(row, logits))
    size = np.where(np.isfinite(scores), np.abs(scores), 0.0) + np.abs(logits)
    error = np.zeros_like(scores) if exact or _untouched(row) else 6 * U32 * (size + 1)
    possible = np.isfinite(scores)
    if row.temperature == 0:
        return Choice(scores, error, possible, possible)
    temperature = float(np.float32(row.temperature))
    scaled, error = scores / temperature, error / temperature + (0 if exact else 2 * U32 * size / temperature)
    kept, maybe = _filtered(row, scaled, error, possible)
    noise = gumbel(token_bits(row.key, row.position, len(scores)))
    return Choice(scaled + noise, error + NOISE_ERROR * (1 + np.abs(noise)) + 2 * U32 * size, kept, maybe)


def probabilities(row: SamplingRow, logits: Scores) -> Scores:
    """What each token's share of many draws is."""
    scaled = penalized(row, edited(row, logits)) / row.temperature
    kept, _ = _filtered(row, scaled, np.zeros_like(scaled), np.isfinite(scaled))
    weights = np.where(kept, np.exp(scaled - scaled[kept].max()), 0.0)
    shares: Scores = weights / weights.sum()
    return shares


def _untouched(row: SamplingRow) -> bool:
    return row.prompt is None and not row.bias and not row.early


def _filtered(row: SamplingRow, scaled: Scores, error: Scores, possible: Mask) -> tuple[Mask, Mask]:
    kept, maybe = possible.copy(), possible.copy()
    if row.min_p > 0:
        best = scaled.max()
        floor = best + np.log(np.float64(np.float32(row.min_p)))
        slack = error + error[scaled.argmax()] + 8 * U32 * (1 + abs(floor))
        kept &= scaled >= floor + slack
        maybe &= scaled >= floor - slack
    if row.top_k > 0:
        kept, maybe = _top_k(row.top_k, scaled, error, kept, maybe)
    if row.top_p < 1:
        kept, maybe = _top_p(float(np.float32(row.top_p)), scaled, error, kept, maybe)
    return kept, maybe


def _top_k(k: int, scaled: Scores, error: Scores, kept: Mask, maybe: Mask) -> tuple[Mask, Mask]:
    """Surely kept: fewer than k may be before it. Surely dropped: k are surely before it."""
    ids = np.arange(len(scaled))
    sure, perhaps = kept.copy(), maybe.copy()
    for token in np.flatnonzero(maybe):
        gap = scaled - scaled[token]
        slack = error + error[token]
        before = (gap > slack) | ((gap == 0) & (ids < token))
        could = (gap >= -slack) & ~((gap == 0) & (ids > token)) & (ids != token)
        sure[token] &= int((could & maybe).sum()) < k
        perhaps[token] &= int((before & kept).sum()) < k
    return sure, perhaps


def _top_p(top_p: float, scaled: Scores, error: Scores, kept: Mask, maybe: Mask) -> tuple[Mask, Mask]:
    """A token stays while what is before it holds less than top_p; the first always stays."""
    order = sorted(np.flatnonzero(maybe).tolist(), key=lambda token: (-scaled[token], token))
    weights = np.exp(scaled[order] - scaled[order[0]])
    shares = weights / weights.sum()
    doubt = weights[[not kept[token] for token in order]].sum() / weights.sum()
    slack = doubt + 2 * float(error[order].max()) + len(scaled) * U32
    sure, perhaps = np.zeros_like(kept), np.zeros_like(maybe)
    before = 0.0
    for place, token in enumerate(order):
        sure[token] = kept[token] and (place == 0 or before < top_p - slack)
        perhaps[token] = place == 0 or before < top_p + slack
        before += shares[place]
    sure[order[0]] |= kept[order[0]]
    return sure, perhaps
