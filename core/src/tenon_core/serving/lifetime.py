"""The server's life in one event loop: the engine's start beside the web server's, readiness, draining, the end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from tenon_core.client.conversation import Conversation
from tenon_core.client.detokenizer import TokenBytes
from tenon_core.client.engine_process import EngineProcess
from tenon_core.client.generation import Generation
from tenon_core.client.grammars import GrammarChecks, grammar_vocabulary
from tenon_core.client.link import EngineLostError
from tenon_core.client.model_files import ModelFiles, open_model_files, resolve_path
from tenon_core.client.supervisor import EngineState, Supervisor
from tenon_core.client.templates import ChatTemplate
from tenon_core.config import EngineConfig
from tenon_core.engine.messages import Ready, StepUpdate
from tenon_core.loading.sources import local_path
from tenon_core.observability.metrics import EngineMetrics
from tenon_platforms.errors import DeviceError, TenonError

from .app import make_app
from .config import ServerConfig
from .http_protocol import protocol_class
from .metrics_server import MetricsServer
from .parsers.registry import load_parsers
from .services import Services, SleepFace
from .tracing import Traces

LOG = logging.getLogger(__name__)
INTERRUPTED = 130  # the exit code after Ctrl-C


class Server(uvicorn.Server):
    """uvicorn's server, which says when it begins to stop, and leaves the ending of the process to us."""

    services: Services | None = None
    was_interrupted = False

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle the signals that ask for an end; unlike uvicorn's own, without raising them again afterwards."""
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {one: signal.signal(one, self.handle_exit) for one in signals}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.services is not None:
            self.services.fail_sleepers()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: Any) -> None:
        if self.services is not None:
            self.services.drain()
        self.was_interrupted |= sig == signal.SIGINT
        super().handle_exit(sig, frame)


@dataclass(slots=True, kw_only=True)
class Lifetime:
    """Puts the parts together as they come up."""

    engine_config: EngineConfig
    server_config: ServerConfig
    process: EngineProcess | None
    began: float
    services: Services = field(init=False)
    supervisor: Supervisor | None = None
    server: Server = field(init=False)
    error: TenonError | None = None
    url: str = ""
    client: int = 0  # its number among the front ends of one engine

    def __post_init__(self) -> None:
        given = self.engine_config.model.model
        endpoint = self.server_config.otlp_traces_endpoint
        names = self.server_config.served_model_name or (served_name(given),)
        self.services = Services(
            config=self.server_config,
            model_names=names,
            aliases=frozenset({given}) if not self.server_config.served_model_name else frozenset(),
            metrics=EngineMetrics(names[0]),
            state=self._state,
            has_sleep=self.engine_config.platform.enable_sleep_mode,
            sleep_face=self._sleep_face,
            grammars=GrammarChecks(
                backend=self.engine_config.structured_outputs.structured_outputs_backend, vocabulary=self._vocabulary
            ),
            traces=None if endpoint is None else Traces.open(endpoint, model=names[0]),
        )

    def _vocabulary(self) -> dict[str, Any] | None:
        """What grammars are compiled over."""
        tokenizer, facts = self.services.tokenizer, self.services.facts
        return None if tokenizer is None or facts is None else grammar_vocabulary(tokenizer, facts)

    def _state(self) -> str:
        supervisor = self.supervisor
        return (EngineState.STARTING if supervisor is None else supervisor.state).value

    def _sleep_face(self) -> SleepFace | None:
        supervisor = self.supervisor
        if supervisor is None or supervisor.link is None:
            return None
        return SleepFace(link=supervisor.link, sleeping=supervisor.sleeping)

    async def run(self, listener: socket.socket, metrics_listener: socket.socket | None = None) -> None:
        """Serve to the end; `error` says why, where it was not asked for."""
        config = self.server_config
        app = make_app(self.services)
        self.server = Server(
            uvicorn.Config(
                app,
                http=protocol_class(config.header_timeout),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=config.max_connections,
                timeout_keep_alive=config.keep_alive_timeout,
                timeout_graceful_shutdown=config.drain_seconds,
                ssl_certfile=config.ssl_certfile,
                ssl_keyfile=config.ssl_keyfile,
            )
        )
        self.server.services = self.services
        scraped = None if metrics_listener is None else MetricsServer.start(self.services, metrics_listener)
        starter = asyncio.get_running_loop().create_task(self._start())
        try:
            await self.before_serving(starter)
            async with also_grpc(app, self.services):
                await self.server.serve(sockets=[listener])
        finally:
            await self.close(starter, scraped)

    async def before_serving(self, starter: asyncio.Task[None]) -> None:
        """Nothing: the port answers from the first moment, with 503 until the engine is ready."""

    async def close(self, starter: asyncio.Task[None], scraped: MetricsServer | None = None) -> None:
        """Bring everything down again."""
        starter.cancel()
        with suppress(asyncio.CancelledError):
            await starter
        if self.services.conversation is not None:
            self.services.conversation.close()
        self.services.grammars.close()
        if scraped is not None:
            await scraped.stop()
        if self.services.traces is not None:
            await asyncio.to_thread(self.services.traces.close)
        if self.supervisor is not None:
            await self.supervisor.stop()
        elif self.process is not None:
            self.process.kill()
            self.process.close(patience=0)

    async def _start(self) -> None:
        """Bring everything up, then wait for the engine's end, which should not come."""
        try:
            path = await asyncio.to_thread(resolve_path, self.engine_config)
            self.supervisor = self._supervisor(path)
            self.supervisor.start(self.process)
            await self._open_faces(path)
            await self.supervisor.ended.wait()
            raise self.supervisor.failure or DeviceError("the engine ended")
        except TenonError as error:
            self.error = error
        except OSError as error:
            self.error = DeviceError(f"the start failed: {error}")
        self.on_end()

    def _supervisor(self, path: Path, kind: type[Supervisor] = Supervisor) -> Supervisor:
        """What keeps the engine running, or (another kind) in touch with it."""
        return kind(
            config=replace(self.engine_config, model=replace(self.engine_config.model, model=str(path))),
            on_update=self._take,
            on_lost=self._lose,
            on_stats=self.services.metrics.take_snapshot,
            on_ready=self._connect,
            stall_seconds=self.server_config.stall_seconds,
            kill_seconds=self.server_config.stall_kill_seconds,
            log_level=logging.getLevelName(logging.getLogger().getEffectiveLevel()).lower(),
        )

    async def _open_faces(self, path: Path) -> None:
        """The tokenizer, the template, the parsers."""
        files = await asyncio.to_thread(
            open_model_files, self.engine_config, path=path, template=self.server_config.chat_template
        )
        await asyncio.to_thread(self._open, files)
        self._announce()

    @property
    def was_interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self.server.was_interrupted

    def on_end(self) -> None:
        """The engine will not run again; `error` says why."""
        self.server.should_exit = True

    def _open(self, files: ModelFiles) -> None:
        services = self.services
        template = None if files.chat_template is None else ChatTemplate(source=files.chat_template)
        if template is not None:
            template.check()
        services.parsers = load_parsers(
            self.server_config.tool_call_parser, self.server_config.reasoning_parser, files.chat_template
        )
        LOG.info(
            "tool calls are read as %s, reasoning as %s",
            services.parsers.tool_name or "text",
            services.parsers.reasoning_name or "text",
        )
        services.tokenizer = files.tokenizer
        services.vocabulary = TokenBytes(backend=files.tokenizer.backend)
        services.conversation = Conversation(tokenizer=files.tokenizer, template=template)

    def _connect(self, ready: Ready) -> None:
        """The engine is ready, for the first time or again."""
        supervisor, services = self.supervisor, self.services
        assert supervisor is not None and supervisor.link is not None
        services.facts, services.ready = ready.facts, ready
        services.metrics.set_block_size(ready.facts.block_size)
        phases = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in ready.start_seconds.items())
        LOG.info("engine ready on platform %s (%s)", ready.facts.platform or "unknown", phases)
        services.generation = None
        self._announce()

    def _announce(self) -> None:
        """Say so once both halves are there: the engine and the tokenizer."""
        supervisor, services = self.supervisor, self.services
        if supervisor is None or supervisor.link is None or services.facts is None or services.vocabulary is None:
            return
        if services.generation is not None or supervisor.state is not EngineState.READY:
            return
        services.generation = Generation(
            link=supervisor.link,
            vocabulary=services.vocabulary,
            seed=self.engine_config.platform.seed,
            observer=services.metrics,
            client=self.client,
        )
        self.on_ready(time.monotonic() - self.began)

    def on_ready(self, seconds: float) -> None:
        """Requests are answered from now on."""
        try:
            print(f"serving {self.services.model_names[0]} at {self.url} after {seconds:.1f} s", flush=True)
        except OSError as error:  # a full disk or a closed pipe is no reason not to serve
            LOG.warning("standard output cannot be written: %s", error.strerror)

    def _take(self, update: StepUpdate) -> None:
        if self.services.generation is not None:
            self.services.generation.take(update)

    def _lose(self, error: TenonError) -> None:
        generation, self.services.generation = self.services.generation, None
        if generation is not None:
            generation.fail_all(EngineLostError("the engine is starting again: try again later"))


@asynccontextmanager
async def also_grpc(app: ASGIApp, services: Services) -> AsyncIterator[None]:
    """The gRPC server beside what runs inside, where one is asked for. Running calls have the same time to finish."""
    if services.config.grpc_port is None:
        yield
        return
    from .rpc.server import RpcServer  # an extra

    server = await RpcServer.start(app, services)
    LOG.info("gRPC is served on port %d", server.port)
    try:
        yield
    finally:
        await server.stop(services.drain_seconds_left)


def served_name(model: str) -> str:
    """The name for clients: as given, but of a path only its last part, since paths are the operator's business."""
    path = None if model.startswith("pkg:") else local_path(model)
    if path is None:
        return model
    return path.resolve().name.removesuffix(".gguf") or model


def serve(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    listener: socket.socket,
    process: EngineProcess,
    *,
    began: float,
    metrics_listener: socket.socket | None = None,
) -> int:
    """Serve in this process. Raises the `TenonError` that ended it, if one did."""
    port = listener.getsockname()[1]
    life = Lifetime(
        engine_config=engine_config,
        server_config=server_config,
        process=process,
        began=began,
        url=replace(server_config, port=port).url,
    )
    return run_life(life, listener, metrics_listener)


def run_life(
    life: Lifetime,
    listener: socket.socket,
    metrics_listener: socket.socket | None = None,
    *,
    before: Callable[[asyncio.AbstractEventLoop], None] = lambda loop: None,
) -> int:
    """Run the event loop; returns the exit code. before: called with it. Raises the `TenonError` that ended it."""
    loop = _new_loop()
    asyncio.set_event_loop(loop)
    before(loop)
    try:
        loop.run_until_complete(life.run(listener, metrics_listener))
        loop.run_until_complete(_cancel_rest())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    if life.error is not None:
        raise life.error
    return INTERRUPTED if life.was_interrupted else 0


async def _cancel_rest() -> None:
    """Requests that a second Ctrl-C left running end in order, while there is a loop to end them in."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.wait(rest, timeout=2.0) if rest else None


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not made for this system
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
