"""Putting an engine process to sleep and waking it up: what was asked, and what the engine last said."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from tenon_core.engine.messages import GoToSleep, Ready, SleepState, WakeUp
from tenon_platforms.errors import TenonError
from tenon_platforms.pools import Pool

from .link import error_of
from .zmq_link import ZmqLink


@dataclass(slots=True, kw_only=True)
class Sleeping:
    """asleep: pools, as the engine last said."""

    asleep: tuple[Pool, ...] = ()
    _asked: dict[int, asyncio.Future[SleepState]] = field(default_factory=dict)

    async def sleep(self, link: ZmqLink, pools: Sequence[Pool]) -> SleepState:
        """Ask for it and wait. Raises what the engine answers, or what `lose` was told."""
        return await self._ask(link, GoToSleep, pools)

    async def wake(self, link: ZmqLink, pools: Sequence[Pool]) -> SleepState:
        """Ask for it and wait. Raises what the engine answers, or what `lose` was told."""
        return await self._ask(link, WakeUp, pools)

    async def _ask(self, link: ZmqLink, kind: type[GoToSleep | WakeUp], pools: Sequence[Pool]) -> SleepState:
        ticket = secrets.randbits(62)  # other clients of the engine hear the answer too
        answer: asyncio.Future[SleepState] = asyncio.get_running_loop().create_future()
        self._asked[ticket] = answer
        try:
            link.send(kind(ticket=ticket, pools=tuple(pools)))
            return await answer
        finally:
            del self._asked[ticket]

    def take(self, message: SleepState | Ready) -> None:
        """What the engine says."""
        self.asleep = message.asleep
        answer = self._asked.get(message.ticket) if isinstance(message, SleepState) else None
        if isinstance(message, Ready) or answer is None or answer.done():
            return
        if message.kind:
            answer.set_exception(error_of(message.kind, message.message))
        else:
            answer.set_result(message)

    def lose(self, error: TenonError) -> None:
        """The engine is gone; the next one is awake."""
        self.asleep = ()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(error)
