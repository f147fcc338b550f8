"""Every family's greedy tokens equal Transformers', for ragged batches of prompts short and long, on every platform."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from driver import drive, prompts_of, request
from equality import Reference, assert_greedy_equal, assert_wide

from tenon_core.engine.assembly import Assembled

pytestmark = pytest.mark.e2e
LENGTHS = (1, 2, 7, 16, 33, 100, 171, 300)
NEW_TOKENS = 64


def test_greedy_tokens_equal_transformers(
    tiny_name: str,
    platform_name: str,
    build_tiny: Callable[..., Assembled],
    reference_of: Callable[[str], Reference],
) -> None:
    reference, prompts = reference_of(tiny_name), prompts_of(LENGTHS)
    assert_wide(reference, prompts[-1])
    engine = build_tiny(tiny_name, platform_name).engine
    outcome = drive(engine, [request(i, prompt, max_tokens=NEW_TOKENS) for i, prompt in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        assert len(outcome.of(i)) == NEW_TOKENS
        assert_greedy_equal(outcome.of(i), reference, prompt, label=f"{tiny_name} on {platform_name}, prompt {i}")
