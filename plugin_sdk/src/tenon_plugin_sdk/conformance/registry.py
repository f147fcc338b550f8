"""What a check is, and where each level's checks live. Listing levels imports none of them.

A check is a function over a subject and one case. It raises where the platform is wrong, and `NotApplicableError` where
the platform has nothing that could be checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .profile import Profile
    from .subject import Subject

LEVELS: dict[str, tuple[str, str]] = {
    "L0": ("packaging", "l0_packaging"),
    "L1": ("device", "l1_device"),
    "L2": ("ops", "l2_ops"),
    "L3": ("execution", "l3_execution"),
    "L4": ("memory", "l4_memory"),
    "L5": ("collectives", "l5_collectives"),
    "L6": ("engine", "l6_engine"),
    "L7": ("performance", "l7_performance"),
}


class NotApplicableError(Exception):
    """The platform makes no claim that this check could test; the text says which."""


class ConformanceError(AssertionError):
    """The platform does not do what the contract says. The text is for the platform's author."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing to check. id: stable, part of the check's address in reports and in conformance.yaml."""

    id: str
    value: Any = None


ONE = (Case(id=""),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A named check of a level. cases: made from the subject's claims; run: raises where the platform is wrong.

    what: one sentence for reports. needs_platform: run on an opened subject; without, its manifest is enough.
    has_seed: it draws, so another seed is another check.
    """

    level: str
    name: str
    what: str
    run: Callable[[Subject, Profile, Case], None]
    cases: Callable[[Subject, Profile], Iterable[Case]] | None = None
    needs_platform: bool = True
    has_seed: bool = True

    @property
    def is_drawn(self) -> bool:
        """Whether another seed is another check: packaging, devices and figures draw nothing."""
        return self.has_seed and self.level not in ("L0", "L1", "L7")

    def cases_of(self, subject: Subject, profile: Profile) -> Iterable[Case]:
        """The cases for one subject."""
        return ONE if self.cases is None else self.cases(subject, profile)

    def address(self, case: Case) -> str:
        """`L2/rms_norm/float32-offset`: what reports and exceptions call it."""
        return "/".join(part for part in (self.level, self.name, case.id) if part)


def checks_of(level: str) -> Sequence[Check]:
    """The checks of one level."""
    found: Sequence[Check] = import_module(f".levels.{LEVELS[level][1]}", __package__).CHECKS
    return found


def levels_up_to(text: str) -> list[str]:
    """`L2`: L0 to L2; `L2,L3`: those two; `L2,`: that one; `all`: every level. Raises ValueError for another text."""
    if text == "all":
        return list(LEVELS)
    names = [part.strip().upper() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in LEVELS:
            raise ValueError(f"--level {text}: {name!r} is no level: known are {', '.join(LEVELS)} and all")
    return names if len(names) > 1 or text.endswith(",") else list(LEVELS)[: list(LEVELS).index(names[0]) + 1]


def all_cases(subject: Subject, profile: Profile, levels: Iterable[str]) -> Iterator[tuple[Check, Case]]:
    """Every check and case of these levels for a subject; of one that does not open, what L0 says of that.

    Where making a check's cases raises, that is the check's failure, and no other's.
    """
    for level in levels if subject.error is None else ("L0",):
        for check in checks_of(level):
            if check.needs_platform and subject.error is not None:
                continue
            try:
                cases = list(check.cases_of(subject, profile))
            except Exception as error:  # noqa: BLE001 - whatever a plugin raises is the finding
                check, cases = replace(check, run=_failing(error)), [Case(id="")]
            for case in cases:
                yield check, case


def _failing(error: Exception) -> Callable[[Subject, Profile, Case], None]:
    def run(subject: Subject, profile: Profile, case: Case) -> None:
        raise error

    return run
