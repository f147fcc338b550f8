"""One of several API processes in front of one engine: `python -m tenon_core.serving.api_process`.

It takes its share of the connections at the common port (SO_REUSEPORT), sends its requests straight to the engine, and
answers its siblings' questions for metrics on a unix socket of its own. It ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tenon_core.client.attached import Attached
from tenon_core.config import EngineConfig
from tenon_core.observability.log import setup_logging
from tenon_platforms.errors import DeviceError, TenonError

from .api_order import MAX_LINE, ApiFailed, ApiOrder, ApiReady, Down, EngineAt, line
from .config import ServerConfig
from .lifetime import Lifetime, run_life
from .metrics_server import MetricsServer
from .response_shares import ResponseShares, place_of
from .server import bind
from .sibling_routes import sibling_routes
from .siblings import unix_listener

EXIT_FAILED = 4


def say(message: msgspec.Struct) -> None:
    """To the first process."""
    sys.stdout.buffer.write(line(message))
    sys.stdout.buffer.flush()


@dataclass(slots=True, kw_only=True)
class ApiLife(Lifetime):
    """A server's life with an engine that is another's."""

    order: ApiOrder
    news: asyncio.Queue[Down | None] = field(default_factory=asyncio.Queue)
    _up: asyncio.Event = field(default_factory=asyncio.Event)

    async def _start(self) -> None:
        asked = None
        try:
            listener = unix_listener(Path(self.order.socket))
            asked = MetricsServer.start(self.services, listener, gathers=False, further=sibling_routes(self.services))
            attached = self._supervisor(Path(self.order.path), Attached)
            assert isinstance(attached, Attached)
            self.supervisor = attached
            following = asyncio.ensure_future(self._follow(attached))
            await self._open_faces(Path(self.order.path))
            await following
        except TenonError as error:
            self.error = error
        except OSError as error:
            self.error = DeviceError(f"the start failed: {error}")
        finally:
            if asked is not None:
                await asked.stop()
        self.on_end()

    async def _follow(self, attached: Attached) -> None:
        """The engine's comings and goings, until the first process is gone."""
        while (news := await self.news.get()) is not None:
            if isinstance(news, EngineAt):
                await attached.attach(news.address, bytes.fromhex(news.secret))
            else:
                await attached.lose(DeviceError(news.message))

    async def before_serving(self, starter: asyncio.Task[None]) -> None:
        """Connections go to siblings that can answer them, until this one can."""
        up = asyncio.ensure_future(self._up.wait())
        await asyncio.wait({up, starter}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()

    def on_ready(self, seconds: float) -> None:
        self._up.set()
        say(ApiReady())


@dataclass(slots=True)
class Lines:
    """Lines of a pipe. Not through `sys.stdin`, whose lock a waiting thread would hold when the interpreter ends."""

    descriptor: int
    _rest: bytes = b""

    def next(self) -> bytes:
        """The next line, or nothing at the end."""
        while b"\n" not in self._rest:
            piece = os.read(self.descriptor, 65536)
            if not piece or len(self._rest) > MAX_LINE:
                return b""
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\n")
        return text


def read_news(lines: Lines, tell: Callable[[Down | None], None]) -> None:
    """In a thread: what the first process says, to the end of the pipe, after which nothing keeps this one."""
    decoder = msgspec.json.Decoder(Down)
    while text := lines.next():
        tell(decoder.decode(text))
    tell(None)


def main() -> int:
    """The process; returns its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides
    lines = Lines(0)
    text = lines.next()
    if not text:
        return 0
    order = msgspec.json.decode(text, type=ApiOrder)
    setup_logging(order.log_level, format=order.log_format)
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in order.server.items()
    }
    config = ServerConfig(**values)
    try:
        listener = bind(config.host, order.port, is_shared=True, listens=False)
        life = ApiLife(
            engine_config=EngineConfig.from_flat(**order.engine), server_config=config, process=None,
            began=time.monotonic(), client=order.client, order=order,
        )  # fmt: skip
        siblings = life.services.siblings = tuple(map(Path, order.siblings))
        life.services.shares = ResponseShares(
            place=place_of(Path(order.socket)), sockets={place_of(path): path for path in siblings}
        )
        with listener:
            run_life(life, listener, before=lambda loop: _listen(loop, life, lines))
    except TenonError as error:
        say(ApiFailed(kind=error.kind, message=error.message, remedy=error.remedy))
        return EXIT_FAILED
    return 0


def _listen(loop: asyncio.AbstractEventLoop, life: ApiLife, lines: Lines) -> None:
    def tell(news: Down | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(life.news.put_nowait, news)

    def listen() -> None:
        try:
            read_news(lines, tell)
        except RuntimeError:  # the loop closed in between
            pass
        except (msgspec.MsgspecError, OSError):
            os._exit(EXIT_FAILED)

    threading.Thread(target=listen, name="tenon-first-process", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
