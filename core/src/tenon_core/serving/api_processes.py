"""The first of several processes: it keeps the engine and the API processes running, and serves no request itself.

    engine <-- ZMQ --> API process 1..N <-- HTTP, one port --> clients
       +--------------- this process: supervises, tells where the engine is, collects metrics

An API process that dies is started again, its requests at the engine are ended. On SIGTERM the API processes drain,
then the engine ends.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import msgspec

from tenon_core.children import module_command
from tenon_core.client.engine_process import EngineProcess
from tenon_core.client.generation import Generation
from tenon_core.client.link import error_of
from tenon_core.client.private_folder import PrivateFolder
from tenon_core.client.supervisor import EngineState
from tenon_core.config import EngineConfig
from tenon_core.engine.clients import MAX_CLIENT
from tenon_core.engine.messages import StepUpdate
from tenon_core.observability.log import current_format
from tenon_platforms.errors import DeviceError, TenonError

from .api_order import ApiOrder, ApiReady, EngineAt, EngineLost, Up, line
from .config import ServerConfig
from .lifetime import Lifetime, run_life
from .metrics_server import MetricsServer
from .response_shares import socket_path

LOG = logging.getLogger(__name__)
COMMAND = tuple(module_command("tenon_core.serving.api_process"))
WATCH_SECONDS = 0.1
EXTRA_SECONDS = 5.0  # beyond the drain's own


@dataclass(slots=True, kw_only=True)
class ApiProcess:
    """A running API process."""

    process: asyncio.subprocess.Process
    is_ready: bool = False
    error: TenonError | None = None

    def tell(self, message: msgspec.Struct) -> None:
        """A line down; one that is gone is found by whoever watches it."""
        with suppress(OSError, RuntimeError):
            if self.process.stdin is not None and not self.process.stdin.is_closing():
                self.process.stdin.write(line(message))


@dataclass(slots=True, kw_only=True)
class SharedLife(Lifetime):
    """The life of the first process."""

    folder: PrivateFolder = field(default_factory=PrivateFolder)
    apis: dict[int, ApiProcess] = field(default_factory=dict)  # by place
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    interrupted: bool = False
    num_started: int = 0
    path: Path = Path()
    port: int = 0
    _told: EngineProcess | None = None
    _has_told: bool = False
    _watchers: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def was_interrupted(self) -> bool:
        return self.interrupted

    async def run(self, listener: socket.socket, metrics_listener: socket.socket | None = None) -> None:
        """Keep everything running until a signal, or the engine's end."""
        loop = asyncio.get_running_loop()
        for one in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(one, self._asked_to_stop, one)
        self.port = listener.getsockname()[1]
        self.services.siblings = tuple(map(self._socket, range(self.server_config.api_server_count)))
        scraped = None if metrics_listener is None else MetricsServer.start(self.services, metrics_listener)
        starter = asyncio.ensure_future(self._start())
        try:
            await self.stop.wait()
            self.services.drain()
            await self._end_apis()
        finally:
            for watcher in self._watchers:
                watcher.cancel()
            await self.close(starter, scraped)
            self.folder.remove()

    def _asked_to_stop(self, sig: int) -> None:
        self.interrupted |= sig == signal.SIGINT
        if self.stop.is_set():  # a second time: nothing is waited for
            for api in self.apis.values():
                with suppress(ProcessLookupError):
                    api.process.kill()
        self.stop.set()

    def _socket(self, place: int) -> Path:
        return socket_path(self.folder.path, place)

    async def _open_faces(self, path: Path) -> None:
        """In place of a face of its own: the processes that have one."""
        self.path = path
        for place in range(self.server_config.api_server_count):
            await self._spawn(place)
        while not self.stop.is_set():
            await self._tell_engine()
            if self.supervisor is not None and self.supervisor.ended.is_set():
                return
            await asyncio.sleep(WATCH_SECONDS)

    async def _spawn(self, place: int) -> None:
        self._socket(place).unlink(missing_ok=True)
        api = ApiProcess(
            process=await asyncio.create_subprocess_exec(
                *COMMAND, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True
            )
        )
        server = {one.name: getattr(self.server_config, one.name) for one in fields(self.server_config)}
        server.update(metrics_port=None, served_model_name=self.services.model_names)
        api.tell(
            ApiOrder(
                client=self.num_started,
                engine=self.engine_config.flat(),
                server=server,
                path=str(self.path),
                names=self.services.model_names,
                port=self.port,
                socket=str(self._socket(place)),
                siblings=tuple(
                    str(self._socket(other)) for other in range(self.server_config.api_server_count) if other != place
                ),
                log_level=logging.getLevelName(logging.getLogger().getEffectiveLevel()).lower(),
                log_format=current_format(),
            )
        )
        self.num_started += 1
        self.apis[place] = api
        self._tell_where(api)
        watcher = asyncio.ensure_future(self._watch(place, api))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)

    async def _watch(self, place: int, api: ApiProcess) -> None:
        """What one API process says, to its end, after which another takes its place."""
        assert api.process.stdout is not None
        decoder = msgspec.json.Decoder(Up)
        while text := await api.process.stdout.readline():
            try:
                said = decoder.decode(text)
            except msgspec.MsgspecError:  # a library printed something
                continue
            if isinstance(said, ApiReady):
                was_ready, api.is_ready = api.is_ready, True
                if not was_ready and not self._has_told and all(one.is_ready for one in self.apis.values()):
                    self._has_told = True
                    self.on_ready(time.monotonic() - self.began)
                self._announce()
            else:
                api.error = error_of(said.kind, said.message, remedy=said.remedy)
        code = await api.process.wait()
        if self.stop.is_set():
            return
        if not api.is_ready or self.num_started > MAX_CLIENT:
            self.error = api.error or DeviceError(f"an API process ended with exit code {code}")
            self.stop.set()
            return
        LOG.warning("API process %d ended with exit code %s: another one is started", place, code)
        await self._spawn(place)

    async def _tell_engine(self) -> None:
        """Tell all of an engine that was started again."""
        if self.supervisor is not None and self.supervisor.process is not self._told:
            for api in self.apis.values():
                self._tell_where(api)
            self._told = self.supervisor.process

    def _tell_where(self, api: ApiProcess) -> None:
        process = None if self.supervisor is None else self.supervisor.process
        if process is not None:
            api.tell(EngineAt(address=process.address, secret=process.secret.hex()))
            self._told = self._told or process

    def _take(self, update: StepUpdate) -> None:
        """Requests are the others' business."""

    def _lose(self, error: TenonError) -> None:
        self.services.generation = None
        for api in self.apis.values():
            api.tell(EngineLost(message=error.message))

    def _announce(self) -> None:
        """Ready once all are: for the health of the scrapers' listener; nothing is generated here."""
        supervisor = self.supervisor
        if supervisor is None or supervisor.link is None or supervisor.state is not EngineState.READY:
            return
        if self.apis and all(one.is_ready for one in self.apis.values()):
            self.services.generation = Generation(link=supervisor.link, vocabulary=None)

    def on_end(self) -> None:
        self.stop.set()

    async def _end_apis(self) -> None:
        """Let all finish what they have."""
        for api in self.apis.values():
            with suppress(ProcessLookupError):
                api.process.terminate()
        ends = [asyncio.ensure_future(api.process.wait()) for api in self.apis.values()]
        if ends:
            _, late = await asyncio.wait(ends, timeout=self.server_config.drain_seconds + EXTRA_SECONDS)
            if late:
                for api in self.apis.values():
                    with suppress(ProcessLookupError):
                        api.process.kill()
                await asyncio.wait(late)


def serve_shared(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    listener: socket.socket,
    process: EngineProcess,
    *,
    began: float,
    metrics_listener: socket.socket | None = None,
) -> int:
    """Serve with several API processes. Raises the `TenonError` that ended it, if one did."""
    life = SharedLife(
        engine_config=engine_config,
        server_config=server_config,
        process=process,
        began=began,
        url=replace(server_config, port=listener.getsockname()[1]).url,
    )
    return run_life(life, listener, metrics_listener)
