"""What "the same greedy tokens" means: the conformance kit's definition, for the tests that cross packages."""

from __future__ import annotations

from tenon_plugin_sdk.conformance.models.cached import cached_reference
from tenon_plugin_sdk.conformance.truth.equality import (
    FLOOR,
    MULTIPLE,
    Logits,
    LogitsFn,
    Reference,
    assert_greedy_equal,
    assert_wide,
    hf_reference,
    sampled_reference,
)

__all__ = [
    "FLOOR",
    "MULTIPLE",
    "Logits",
    "LogitsFn",
    "Reference",
    "assert_greedy_equal",
    "assert_wide",
    "cached_reference",
    "hf_reference",
    "sampled_reference",
]
