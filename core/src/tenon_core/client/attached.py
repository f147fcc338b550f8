"""`Attached`: in touch with an engine that another process keeps running, as `Supervisor` is with its own.

It starts, ends and restarts nothing: who supervises the engine says where it is, and when it is lost.
"""

from __future__ import annotations

import time
from contextlib import suppress

from tenon_platforms.errors import TenonError

from .engine_process import EngineProcess
from .supervisor import EngineState, Supervisor
from .zmq_link import ZmqLink


class Attached(Supervisor):
    """A front end's view of the engine."""

    __slots__ = ()

    def start(self, process: EngineProcess | None = None) -> None:
        """Nothing: `attach` follows."""

    async def attach(self, address: str, secret: bytes) -> None:
        """The engine is, or will be, there."""
        await self._leave()
        self._state = EngineState.STARTING
        self._last_heard = time.monotonic()
        self.link = ZmqLink(address=address, secret=secret, on_message=self._take)
        self.link.open()
        self.link.hello()

    async def lose(self, error: TenonError) -> None:
        """The engine is gone, with its requests."""
        self._state, self.failure = EngineState.FAILED, error
        self.sleeping.lose(error)
        self.on_lost(error)
        await self._leave()

    async def _leave(self) -> None:
        if self.link is not None:
            link, self.link = self.link, None
            with suppress(OSError):
                await link.close()

    async def stop(self) -> None:
        """Leave the engine to itself."""
        await self._leave()
