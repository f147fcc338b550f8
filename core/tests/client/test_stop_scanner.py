"""Stop strings: the first one to be completed, whatever the split; what may begin one is held back."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenon_core.client.stop_scanner import StopScanner

pytestmark = pytest.mark.unit
LETTERS = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)


def expected(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The literal meaning: the first end of any stop string, the longest of those that end there."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@given(LETTERS, STOPS, st.booleans(), st.lists(st.integers(0, 30), max_size=6))
@settings(max_examples=500, deadline=None)
def test_any_split_stops_at_the_same_place(text: str, stops: list[str], include: bool, cuts: list[int]) -> None:
    scanner = StopScanner(stops=tuple(stops), include=include)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    shown = ""
    for start, end in pairwise(places):
        shown += scanner.feed(text[start:end])
        meant, _ = expected(text, stops, include)
        assert meant.startswith(shown), "text was shown that the stop string takes back"
    shown += scanner.flush()
    assert (shown, scanner.matched) == expected(text, stops, include)


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    scanner = StopScanner(stops=("END",))
    assert scanner.feed("hello E") == "hello "
    assert scanner.feed("N") == ""
    assert scanner.feed("x") == "ENx"


def test_hostile_stop_strings_cost_linear_time() -> None:
    scanner = StopScanner(stops=tuple("a" * 1023 + chr(98 + place) for place in range(16)))
    started = time.perf_counter()
    for _ in range(200):
        scanner.feed("a" * 100)
    assert time.perf_counter() - started < 10
