"""When the engine is ended for its silence: not for what a front end that was held up itself could not hear."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tenon_core.client.supervisor import EngineState, Supervisor
from tenon_core.config import EngineConfig
from tenon_core.engine.messages import Heartbeat

pytestmark = pytest.mark.unit
KILL_SECONDS = 1.0


class Process:
    """An engine's process that says nothing by itself."""

    exit_code: int | None = None
    was_killed = False

    def kill(self) -> None:
        self.was_killed = True


def watched() -> tuple[Supervisor, Process]:
    def nothing(*_: Any) -> None:
        return

    supervisor = Supervisor(
        config=EngineConfig.from_flat(model="none"), on_update=nothing, on_lost=nothing, on_stats=nothing,
        on_ready=nothing, stall_seconds=KILL_SECONDS, kill_seconds=KILL_SECONDS,
    )  # fmt: skip
    process = Process()
    supervisor.process = process  # type: ignore[assignment]
    supervisor._state = EngineState.READY
    supervisor._take(Heartbeat())
    return supervisor, process


def test_an_engine_is_not_ended_for_what_nobody_could_hear() -> None:
    async def main() -> None:
        supervisor, process = watched()
        watcher = asyncio.ensure_future(supervisor._watch())
        await asyncio.sleep(0.3)
        time.sleep(2.5 * KILL_SECONDS)  # the front end is held up; the engine's words lie unread
        await asyncio.sleep(0.3)
        assert not process.was_killed and supervisor.state is EngineState.READY
        supervisor._take(Heartbeat())
        await asyncio.sleep(0.3)
        assert not process.was_killed
        watcher.cancel()

    asyncio.run(main())


def test_an_engine_that_stays_silent_is_ended_soon() -> None:
    async def main() -> None:
        supervisor, process = watched()
        watcher = asyncio.ensure_future(supervisor._watch())
        await asyncio.sleep(0.3)
        time.sleep(2.5 * KILL_SECONDS)
        supervisor._take(Heartbeat())  # heard late: what nobody heard is not excused twice
        deadline = time.monotonic() + 10 * KILL_SECONDS
        while not process.was_killed:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert supervisor.state is EngineState.STALLED
        watcher.cancel()

    asyncio.run(main())
