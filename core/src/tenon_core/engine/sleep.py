"""Sleep: the device's memory goes back while the engine waits, and comes again at the same addresses.

    awake -- sleep(pools) --> asleep -- wake(some) --> asleep -- wake(the rest) --> awake

Nothing runs while any pool sleeps. Requests stay: without the KV cache, those that ran give their rows and blocks up
and are computed again after waking; those that come meanwhile wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tenon_platforms.device import Device
from tenon_platforms.errors import ConfigError
from tenon_platforms.pools import Pool

from .kv_memory import KVMemory
from .schedule import Scheduler


@dataclass(slots=True, kw_only=True)
class Sleep:
    """Which pools sleep. can_sleep: the engine was made for it."""

    device: Device
    memory: KVMemory
    scheduler: Scheduler
    can_sleep: bool
    asleep: tuple[Pool, ...] = ()

    def begin(self, pools: Sequence[Pool]) -> int:
        """Give these pools back; no step is in flight. Returns the bytes, of those that did not sleep before.

        Raises `ConfigError` where the engine was not made for it, `CapacityError` where weights find no room.
        """
        self._check()
        fresh = tuple(pool for pool in Pool if pool in pools and pool not in self.asleep)
        self.device.synchronize()
        given_back = self.device.sleep(fresh)  # first: what it refuses has changed nothing
        if Pool.KV_CACHE in fresh:
            for sequence in [one for one in self.scheduler.sequences() if one.is_running]:
                self.scheduler.requeue(sequence)
            self.scheduler.settle()
            self.memory.allocator.forget_all()
        self.asleep = tuple(pool for pool in Pool if pool in pools or pool in self.asleep)
        return given_back

    def end(self, pools: Sequence[Pool]) -> None:
        """Bring these pools back, one by one. Raises `CapacityError` where there is no room: the rest sleeps on."""
        self._check()
        for pool in (pool for pool in Pool if pool in pools and pool in self.asleep):
            self.device.wake((pool,))
            self.asleep = tuple(other for other in self.asleep if other is not pool)

    def _check(self) -> None:
        if not self.can_sleep:
            raise ConfigError(
                "this engine cannot sleep: its memory was not allocated for it",
                remedy="start it with --enable-sleep-mode (enable_sleep_mode=True)",
            )
