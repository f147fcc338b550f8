"""Profiles: how long the kit looks. *quick* is for every change, *full* for a release.

A profile decides numbers only, never what is right.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """examples: drawn shapes a case, beside the fixed edges. replays: of a captured key. soak: steps. seed: of all.

    draws: samples behind a distribution test. wide: also large models' sizes. repeats: of a timing.
    """

    name: str
    examples: int
    replays: int
    soak: int
    draws: int
    repeats: int
    wide: bool = False
    seed: int = 0

    def salted(self, salt: int) -> int:
        """The seed of one draw among a check's: another for every salt, and for every seed of the run."""
        return salt + 1_000_003 * self.seed


QUICK = Profile(name="quick", examples=4, replays=20, soak=200, draws=2000, repeats=5)
FULL = Profile(name="full", examples=60, replays=100, soak=1000, draws=20000, repeats=30, wide=True)
PROFILES = {profile.name: profile for profile in (QUICK, FULL)}
