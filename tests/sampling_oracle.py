"""How a token is chosen, written out for one row in float64 numpy: what every sampler must agree with.

Follows the contract's text (`sampling_reference.py`, `noise.py`) and shares nothing with it but the noise's bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tenon_platforms.noise import gumbel, token_bits

Scores = npt.NDArray[np.float64]  # [vocab]


def edited(
    logits: Scores,
    *,
    bias: Mapping[int, float] | None = None,
    allowed: Sequence[int] | None = None,
    banned: Sequence[int] = (),
) -> Scores:
    """Logits after bias, allowed ids and banned ids."""
    scores = logits.astype(np.float64).copy()
    if allowed is not None:
        scores[np.setdiff1d(np.arange(len(scores)), list(allowed))] = -np.inf
    for token, value in (bias or {}).items():
        scores[token] += value
    scores[list(banned)] = -np.inf
    return scores


def penalized(
    scores: Scores,
    *,
    prompt: Sequence[int],
    output: Sequence[int],
    repetition: float = 1.0,
    frequency: float = 0.0,
    presence: float = 0.0,
) -> Scores:
    """Scores after the three penalties, of which only repetition looks at the prompt."""
    scores = scores.copy()
    for token in set(prompt) | set(output):
        scores[token] = scores[token] / repetition if scores[token] > 0 else scores[token] * repetition
    for token in set(output):
        scores[token] -= frequency * list(output).count(token) + presence
    return scores


def filtered(scores: Scores, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Scores:
    """Scores after min-p, top-k and top-p, each on what the one before it left."""
    scores = scores.copy()
    if min_p > 0:
        scores[scores < scores.max() + np.log(min_p)] = -np.inf
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    if top_k > 0:
        scores[order[top_k:]] = -np.inf
    if top_p < 1:
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        before = 0.0
        for place, token in enumerate(order):
            if place > 0 and before >= top_p:
                scores[token] = -np.inf
            before += weights[token]
    return scores


def noisy(
    scores: Scores,
    *,
    key: tuple[int, int],
    position: int,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Scores:
    """What the best is taken of: scores as they are where temperature is 0, else filtered and with Gumbel noise."""
    if temperature == 0:
        return scores
    kept = filtered(scores / temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    return kept + gumbel(token_bits(key, position, len(scores)))


def assert_best(scores: Scores, token: int, *, bound: float, label: str = "") -> None:
    """Assert that `token` has the best score, or one within `bound` of it."""
    assert np.isfinite(scores[token]), f"{label}: token {token} was not allowed"
    lead = scores.max() - scores[token]
    assert lead <= bound, f"{label}: token {token} was chosen, {int(scores.argmax())} leads by {lead:.3g}"
