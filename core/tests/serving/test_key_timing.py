"""T03: how long a wrong key takes says nothing about how much of it was right."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from starlette.datastructures import Headers

from tenon_core.serving.access import Keys
from tenon_core.serving.errors import HttpError

pytestmark = pytest.mark.unit
KEY = "".join(random.Random(7).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=64))
MATCHED = (0, 16, 32, 48, 63)  # characters that are right
SAMPLES = 10_000
MAX_SLOPE = 0.05  # of the whole time, over a whole key
ATTEMPTS = 3  # a machine's noise passes, a leak does not


def guesses() -> list[str]:
    """Wrong keys, all as long as the right one: the first characters right, the next one wrong."""
    return [KEY[:count] + "#" * (len(KEY) - count) for count in MATCHED]


def slope(attempt: Callable[[str], None]) -> float:
    """How much longer a wrong key takes that is all right but for its end, as a share of the time; by least squares."""
    wrong, order = guesses(), [*range(len(MATCHED))] * (SAMPLES // len(MATCHED))
    random.Random(1).shuffle(order)
    seconds: list[list[int]] = [[] for _ in MATCHED]
    for place in order:
        guess = wrong[place]
        started = time.perf_counter_ns()
        attempt(guess)
        seconds[place].append(time.perf_counter_ns() - started)
    typical = [statistics.median(each) for each in seconds]
    gradient = statistics.linear_regression(MATCHED, typical).slope
    return gradient * len(KEY) / statistics.mean(typical)


def ask(keys: Keys) -> Callable[[str], None]:
    def attempt(guess: str) -> None:
        headers = Headers(raw=[(b"authorization", b"Bearer " + guess.encode())])
        with suppress(HttpError):
            keys.check(headers)
            raise AssertionError("a wrong key was let in")

    return attempt


def leaks(attempt: Callable[[str], None]) -> list[float]:
    """The slopes, if every attempt at measuring found one."""
    found = [slope(attempt) for _ in range(ATTEMPTS)]
    return found if min(map(abs, found)) > MAX_SLOPE else []


def test_time_does_not_tell_how_much_of_a_key_is_right() -> None:
    assert not leaks(ask(Keys((KEY,))))
    assert not leaks(ask(Keys(("another-key", KEY))))


def test_a_comparison_that_stops_early_is_found() -> None:
    def stops_early(guess: str) -> None:
        check = ask(Keys(("x",)))
        check(guess)
        for ours, theirs in zip(KEY, guess, strict=True):
            if ours != theirs:
                return

    assert leaks(stops_early)
