"""An engine process and its supervisor: start, readiness, liveness, restart.

The process is spawned first and gets its order later, so that it imports while the parent still looks for the model.
The engine's loop is never silent for long, and says so before a step that will be; silence beyond that makes it
*stalled* (health says so), longer silence ends it, and an engine that was ready once is started again.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tenon_core.config import EngineConfig
from tenon_core.engine.messages import (
    Busy,
    EngineMessage,
    EngineStats,
    Failed,
    Heartbeat,
    Ready,
    SleepState,
    StepUpdate,
)
from tenon_platforms.errors import DeviceError, TenonError

from .engine_process import EngineProcess
from .link import error_of
from .sleeping import Sleeping
from .zmq_link import ZmqLink

LOG = logging.getLogger(__name__)
WATCH_SECONDS = 0.1


class EngineState(enum.Enum):
    """What health says."""

    STARTING = "starting"
    READY = "ready"
    STALLED = "stalled"
    FAILED = "failed"


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Keeps one engine running.

    on_update, on_stats: called in the event loop. on_lost: the engine died with requests in it. stall_seconds: silence
    after which it counts as stalled; kill_seconds: after which it is ended and started again; both on top of what the
    engine expects its step to take.
    """

    config: EngineConfig
    on_update: Callable[[StepUpdate], None]
    on_lost: Callable[[TenonError], None]
    on_stats: Callable[[EngineStats], None] = lambda stats: None
    on_ready: Callable[[Ready], None] = lambda ready: None
    spawn: Callable[[], EngineProcess] = EngineProcess
    stall_seconds: float = 4.0
    kill_seconds: float = 60.0
    max_restarts: int = 3
    log_level: str = "info"
    failure: TenonError | None = None
    num_restarts: int = 0
    process: EngineProcess | None = None
    link: ZmqLink | None = None
    sleeping: Sleeping = field(default_factory=Sleeping)
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # set when it will not run again
    _state: EngineState = EngineState.STARTING
    _last_heard: float = 0.0
    _busy_seconds: float = 0.0  # what its step will take by its own reckoning
    _said: TenonError | None = None  # what a dying engine said
    _watcher: asyncio.Task[None] | None = None

    @property
    def state(self) -> EngineState:
        """As of now, also where the event loop was busy."""
        if self._state is EngineState.READY and self._silence() > self.stall_seconds:
            return EngineState.STALLED
        return self._state

    def _silence(self) -> float:
        """Seconds since it should have been heard of."""
        return time.monotonic() - self._last_heard - self._busy_seconds

    def _excuse(self, seconds: float) -> None:
        """This event loop was held up for so long: what nobody could hear was no silence of the engine's."""
        if seconds > WATCH_SECONDS:
            self._last_heard = min(self._last_heard + seconds, time.monotonic())

    def start(self, process: EngineProcess | None = None) -> None:
        """Give the order to a process that was spawned already, or to a new one, and watch it."""
        self._begin(process or self.spawn())
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    def _begin(self, process: EngineProcess) -> None:
        self._state, self._said = EngineState.STARTING, None
        self.process = process
        process.order(self.config, log_level=self.log_level)
        self.link = ZmqLink(address=process.address, secret=process.secret, on_message=self._take)
        self.link.open()
        self.link.hello()

    def _take(self, message: EngineMessage) -> None:
        self._last_heard = time.monotonic()
        self._busy_seconds = message.seconds if isinstance(message, Busy) else 0.0
        if isinstance(message, StepUpdate):
            if message.stats is not None:
                self.on_stats(message.stats)
            self.on_update(message)
        elif isinstance(message, Heartbeat):
            if message.stats is not None:
                self.on_stats(message.stats)
        elif isinstance(message, Ready):
            self._state = EngineState.READY
            self.sleeping.take(message)
            self.on_ready(message)
        elif isinstance(message, SleepState):
            self.sleeping.take(message)
        elif isinstance(message, Failed):
            self._said = error_of(message.kind, message.message)

    async def _watch(self) -> None:
        was_ready = False
        while True:
            began = time.monotonic()
            await asyncio.sleep(WATCH_SECONDS)
            self._excuse(time.monotonic() - began - WATCH_SECONDS)
            was_ready |= self._state is EngineState.READY
            process = self.process
            assert process is not None
            silence = self._silence()
            if self._state is EngineState.READY and silence > self.kill_seconds and process.exit_code is None:
                LOG.error("the engine has not answered for %.0f s: it is ended", silence)
                process.kill()
            if process.exit_code is None:
                continue
            await self._buried(process)
            if not was_ready or self.num_restarts >= self.max_restarts:
                self.ended.set()
                return
            self.num_restarts += 1
            LOG.warning("the engine is started again (%d of %d)", self.num_restarts, self.max_restarts)
            self._begin(self.spawn())

    async def _buried(self, process: EngineProcess) -> None:
        """The process is dead: tell its requests, and clear away what it left."""
        await asyncio.sleep(WATCH_SECONDS)  # its last words may be under way
        code = process.exit_code
        how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        self._state = EngineState.FAILED
        self.failure = self._said or DeviceError(f"the engine process ended {how}", remedy="see the lines above")
        LOG.error("%s", self.failure.message)
        self.sleeping.lose(self.failure)
        self.on_lost(self.failure)
        if self.link is not None:
            await self.link.close()
            self.link = None
        process.close(patience=0)

    async def stop(self) -> None:
        """End the engine."""
        if self._watcher is not None:
            self._watcher.cancel()
            with suppress(asyncio.CancelledError):
                await self._watcher
        if self.link is not None:
            self.link.shutdown()
            await asyncio.sleep(0)
        if self.process is not None:
            await asyncio.to_thread(self.process.close)
        if self.link is not None:
            await self.link.close()
            self.link = None
