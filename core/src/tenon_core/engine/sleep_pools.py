"""Which pools a request to sleep or to wake up means. Torch-free: front ends ask."""

from __future__ import annotations

from collections.abc import Sequence

from tenon_platforms.errors import RequestError
from tenon_platforms.pools import Pool

LEVELS: dict[int, tuple[Pool, ...]] = {1: tuple(Pool)}


def pools_of_level(level: object) -> tuple[Pool, ...]:
    """What `level` gives back. Raises `RequestError` for one that there is not."""
    if isinstance(level, bool) or not isinstance(level, int) or level not in LEVELS:
        raise RequestError(
            f"level is {level!r:.40}: there is level 1, which keeps the weights on the host and drops the KV cache;"
            " weights that were dropped too could not be read again in place",
            param="level",
        )
    return LEVELS[level]


def pools_named(names: Sequence[str]) -> tuple[Pool, ...]:
    """Pools by their names; none named means all. Raises `RequestError` for a name that no pool has."""
    known = {pool.value: pool for pool in Pool}
    if not isinstance(names, (list, tuple)):
        raise RequestError(f"tags is {names!r:.40}: expected a list of {', '.join(known)}", param="tags")
    if wrong := [name for name in names if not isinstance(name, str) or name not in known]:
        raise RequestError(f"tags holds {wrong[0]!r:.40}: there are {', '.join(known)}", param="tags")
    return tuple(dict.fromkeys(known[name] for name in names)) or tuple(Pool)
