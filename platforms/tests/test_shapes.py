"""The shape lattice: every need gets a key that covers it, keys are few, and what is outside is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenon_platforms.errors import CapacityError
from tenon_platforms.shapes import GREEDY, DynamicShapes, LatticeShapes, SamplingMode, ScheduleLimits, ShapeKey

pytestmark = pytest.mark.unit
EVERYTHING = SamplingMode(noise=True, filters=True, penalties=True, edits=True, num_logprobs=20)
LIMITS = ScheduleLimits(max_tokens=64, max_rows=8)
MODE = st.builds(
    SamplingMode,
    noise=st.booleans(),
    filters=st.booleans(),
    penalties=st.booleans(),
    edits=st.booleans(),
    num_logprobs=st.integers(-1, 20),
)


def strict(**fields: object) -> LatticeShapes:
    known = {
        "limits": LIMITS,
        "decode_rows": (1, 2, 4, 8),
        "prefill": ((24, 2), (64, 8)),
        "blocks": (2, 8),
        "modes": (GREEDY, EVERYTHING),
        "strict": True,
    }
    return LatticeShapes(**{**known, **fields})  # type: ignore[arg-type]


@st.composite
def needs(draw: st.DrawFn) -> ShapeKey:
    rows = draw(st.integers(1, 8))
    tokens = rows if draw(st.booleans()) else draw(st.integers(rows, 64))
    decode = tokens == rows and draw(st.booleans())
    return ShapeKey(
        tokens=tokens,
        rows=rows,
        logits=draw(st.integers(1, rows if decode else tokens)),
        max_query=1 if decode else max(2, tokens - rows + 1),
        blocks=draw(st.integers(1, 8)),
        mode=draw(MODE),
    )


@given(need=needs())
def test_a_strict_lattice_covers_every_need_with_a_prepared_key(need: ShapeKey) -> None:
    policy = strict()
    key = policy.key(need)
    assert key.static
    assert key.tokens >= need.tokens and key.rows >= need.rows and key.logits >= need.logits
    assert key.blocks >= need.blocks and key.mode.union(need.mode) == key.mode
    assert key.is_decode == (need.is_decode and need.logits <= need.rows)
    assert key in set(policy.eager_keys()), "a step would compile after ready"
    assert policy.key(key) == key


def test_eager_keys_come_largest_first_and_once() -> None:
    keys = list(strict().eager_keys())
    assert len(keys) == len(set(keys))
    prefills = [key.tokens for key in keys if not key.is_decode]
    decodes = [key.rows for key in keys if key.is_decode]
    assert prefills == sorted(prefills, reverse=True) and decodes == sorted(decodes, reverse=True)
    assert set(decodes) == {1, 2, 4, 8}


@pytest.mark.parametrize(
    "need",
    [
        ShapeKey(tokens=65, rows=3, logits=3, max_query=60, blocks=1),
        ShapeKey(tokens=20, rows=9, logits=3, max_query=4, blocks=1),
    ],
)
def test_a_strict_lattice_refuses_what_lies_outside(need: ShapeKey) -> None:
    with pytest.raises(CapacityError, match=rf"{need.tokens} tokens in {need.rows} rows lies outside"):
        strict().key(need)


def test_more_blocks_than_the_lattice_has_are_refused_with_both_numbers() -> None:
    with pytest.raises(CapacityError, match="9 is above the largest size of this platform's lattice, 8"):
        strict().key(ShapeKey(tokens=1, rows=1, logits=1, max_query=1, blocks=9))


def test_a_mode_that_no_lattice_mode_covers_is_refused() -> None:
    with pytest.raises(CapacityError, match="no sampler mode of this platform covers"):
        strict(modes=(GREEDY,)).key(
            ShapeKey(tokens=1, rows=1, logits=1, max_query=1, blocks=1, mode=SamplingMode(noise=True))
        )


def test_a_capture_lattice_pads_decodes_and_leaves_prefills_alone() -> None:
    policy = strict(strict=False, prefill=(), blocks=(), modes=())
    prefill = ShapeKey(tokens=33, rows=2, logits=2, max_query=30, blocks=3)
    assert policy.key(prefill) == prefill
    decode = policy.key(ShapeKey(tokens=3, rows=3, logits=3, max_query=1, blocks=3, mode=EVERYTHING))
    assert (decode.tokens, decode.rows, decode.logits, decode.blocks, decode.mode) == (4, 4, 4, 0, EVERYTHING)
    assert {key.mode for key in policy.eager_keys()} == {GREEDY, SamplingMode(noise=True)}


@given(need=needs())
def test_dynamic_shapes_are_the_identity(need: ShapeKey) -> None:
    policy = DynamicShapes(limits=LIMITS)
    assert policy.key(need) == need and not list(policy.eager_keys()) and not list(policy.lazy_keys())


@given(first=MODE, second=MODE, third=MODE)
def test_modes_form_a_lattice(first: SamplingMode, second: SamplingMode, third: SamplingMode) -> None:
    assert first.union(second) == second.union(first)
    assert first.union(first) == first == first.union(GREEDY)
    assert first.union(second).union(third) == first.union(second.union(third))
