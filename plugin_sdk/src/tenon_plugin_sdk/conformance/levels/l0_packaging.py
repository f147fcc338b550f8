"""Level 0, packaging: what can be said of a plugin before any of its code runs, and what importing it does."""

from __future__ import annotations

from ..profile import Profile
from ..registry import Case, Check, ConformanceFailure
from ..subject import Subject


def opens(subject: Subject, profile: Profile, case: Case) -> None:
    """The platform is imported, made and its device opened."""
    if subject.error is not None:
        raise ConformanceFailure(f"the platform does not open:\n{subject.error}")


CHECKS = (Check(level="L0", name="opens", what="the platform can be made", run=opens, needs_platform=False),)
