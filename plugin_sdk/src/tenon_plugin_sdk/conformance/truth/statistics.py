"""Two tests of drawn tokens against a distribution, without a statistics library."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Shares = npt.NDArray[np.float64]
LEAST_EXPECTED = 8.0  # rarer tokens are put together
SIGNIFICANCE = 1e-7  # of a false alarm; draws are fixed by a seed, so this is paid once, not every run


def chi_squared(counts: Shares, shares: Shares) -> float:
    """The probability of counts at least this far from the shares (Wilson and Hilferty's approximation)."""
    total = counts.sum()
    order = np.argsort(-shares)
    observed, expected, rest_seen, rest = [], [], 0.0, 0.0
    for token in order:
        if shares[token] * total >= LEAST_EXPECTED:
            observed.append(counts[token])
            expected.append(shares[token] * total)
        else:
            rest_seen, rest = rest_seen + counts[token], rest + shares[token] * total
    if rest > 0:
        observed.append(rest_seen)
        expected.append(rest)
    elif rest_seen > 0:
        return 0.0  # a token without a share was drawn
    if len(expected) < 2:
        return 1.0
    seen, due = np.array(observed), np.array(expected)
    statistic = float(((seen - due) ** 2 / np.maximum(due, 1.0)).sum())
    degrees = len(due) - 1
    z = ((statistic / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))
    return 0.5 * math.erfc(z / math.sqrt(2))


def kolmogorov_smirnov(counts: Shares, shares: Shares) -> float:
    """As above for the greatest distance of the cumulated shares (Dvoretzky-Kiefer-Wolfowitz-Massart's bound)."""
    total = counts.sum()
    distance = float(np.abs(counts.cumsum() / total - shares.cumsum()).max())
    return min(1.0, 2 * math.exp(-2 * total * distance**2))
