"""Means and percentiles of measured values, and their names in reports."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from tenon_platforms.errors import ConfigError

DEFAULT_PERCENTILES = "50,90,99"


def parse_percentiles(text: str) -> tuple[float, ...]:
    """`50,90,99` as numbers. Raises `ConfigError`."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"percentiles are {text!r}: expected numbers such as {DEFAULT_PERCENTILES}") from error
    if not all(0 < value < 100 for value in found):
        raise ConfigError(f"percentiles are {text!r}: each lies between 0 and 100")
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """Linear between the closest ranks, as numpy's default. NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def describe(
    name: str, values: Sequence[float], percentiles: Sequence[float], *, scale: float = 1e3
) -> dict[str, float | None]:
    """`mean_NAME`, `median_NAME`, `std_NAME` and `pXX_NAME`, scaled (seconds to milliseconds); None of nothing."""
    if not values:
        keys = ["mean", "median", "std", *(f"p{share:g}" for share in percentiles)]
        return {f"{key}_{name}": None for key in keys}
    return {
        f"mean_{name}": statistics.fmean(values) * scale,
        f"median_{name}": statistics.median(values) * scale,
        f"std_{name}": statistics.pstdev(values) * scale,
        **{f"p{share:g}_{name}": percentile(values, share) * scale for share in percentiles},
    }
