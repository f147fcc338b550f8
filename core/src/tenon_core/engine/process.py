"""The engine as a process of its own: `python -m tenon_core.engine.process`.

    standard input   one line of JSON (`StartOrder`), then held open: its end is the parent's end, and ours
    ZMQ socket       [secret, message] in, one message a step out

The loop drains its input without waiting while there is work, and sleeps on it when there is none. Frames that are no
message, or come without the secret, are dropped and counted; nobody is sent anything who did not show the secret.
"""

from __future__ import annotations

import gc
import hmac
import logging
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import zmq

from tenon_core.config import EngineConfig
from tenon_core.observability.log import setup_logging
from tenon_core.torch_import import import_torch, preload_torch
from tenon_platforms.errors import CapacityError, ConfigError, RequestError, TenonError

from .clients import client_of, shares
from .messages import (
    AbortRequest,
    Busy,
    ClientMessage,
    EngineMessage,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    GoToSleep,
    Heartbeat,
    Ready,
    ResetPrefixCache,
    Shutdown,
    SleepState,
    StepUpdate,
    WakeUp,
    sequence_key,
)
from .wire import HEARTBEAT_SECONDS, LOCK_NAME, MAX_MESSAGE_BYTES, SOCKET_NAME, StartOrder

if TYPE_CHECKING:
    from .engine import Engine

LOG = logging.getLogger(__name__)
START_LINGER_MS = 2_000
MAX_ORDER_BYTES = 2**20
EXIT_FAILED = 4
SLEEP_PATIENCE_SECONDS = 120.0  # in which the loop may be silent over moving all weights


@dataclass(slots=True, kw_only=True)
class ServerSocket:
    """The engine's end of the link."""

    address: str
    secret: bytes
    num_dropped: int = 0
    ready: Ready | None = None  # told to those who come later
    _peers: set[bytes] = field(default_factory=set)
    _owners: dict[int, bytes] = field(default_factory=dict)  # client's number -> its peer
    _gone: list[int] = field(default_factory=list)  # clients whose requests nobody waits for any more
    _told_all: float = 0.0
    _context: zmq.Context[zmq.Socket[bytes]] = field(default_factory=zmq.Context)
    _socket: zmq.Socket[bytes] = field(init=False)
    _encoder: msgspec.msgpack.Encoder = field(default_factory=msgspec.msgpack.Encoder)
    _decoder: msgspec.msgpack.Decoder[ClientMessage] = field(
        default_factory=lambda: msgspec.msgpack.Decoder(ClientMessage)
    )

    def __post_init__(self) -> None:
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        before = os.umask(0o177)  # the socket is 0600 from its first moment
        try:
            self._socket.bind(self.address)
        finally:
            os.umask(before)
        if self.address.startswith("ipc://"):
            Path(self.address.removeprefix("ipc://")).chmod(stat.S_IRUSR | stat.S_IWUSR)

    def wait(self, seconds: float) -> bool:
        """Sleep until something arrives."""
        return bool(self._socket.poll(int(seconds * 1000)))

    def drain(self, limit: int = 1024) -> list[ClientMessage]:
        """All messages that are there, up to a limit that lets the loop go on."""
        messages: list[ClientMessage] = []
        for _ in range(limit):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            message = self._accepted(frames)
            if message is not None:
                messages.append(message)
        return messages

    def _accepted(self, frames: Sequence[bytes]) -> ClientMessage | None:
        if len(frames) != 3 or not hmac.compare_digest(frames[1], self.secret):
            self._drop("without the link's secret")
            return None
        self._peers.add(frames[0])
        if not frames[2]:  # a hello
            if self.ready is not None:
                self._send_to(frames[0], self._encoder.encode(self.ready))
            return None
        try:
            message = self._decoder.decode(frames[2])
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._drop(f"that is no message ({error})")
            return None
        if isinstance(message, GenerateRequest):
            self._owners[client_of(message.id)] = frames[0]
        return message

    def _drop(self, why: str) -> None:
        self.num_dropped += 1
        if self.num_dropped & (self.num_dropped - 1) == 0:  # the 1st, 2nd, 4th, ...: a flood does not fill the log
            LOG.warning("dropped a frame %s; %d so far", why, self.num_dropped)

    def send(self, message: EngineMessage) -> None:
        """To every peer that showed the secret; one that is gone, or does not read, is forgotten."""
        if isinstance(message, StepUpdate) and len(self._peers) > 1:
            self._send_shares(message)
            return
        self._told_all = time.monotonic()
        payload = self._encoder.encode(message)
        for peer in list(self._peers):
            self._send_to(peer, payload)

    def _send_shares(self, update: StepUpdate) -> None:
        """To each client what is its own; to the others, now and then, that the engine lives."""
        rest = set(self._peers)
        for client, share in shares(update).items():
            peer = self._owners.get(client)
            if peer is not None:
                rest.discard(peer)
                self._send_to(peer, self._encoder.encode(share))
        now = time.monotonic()
        if update.stats is not None or now - self._told_all >= HEARTBEAT_SECONDS / 2:
            self._told_all = now
            payload = self._encoder.encode(Heartbeat(stats=update.stats))
            for peer in rest:
                self._send_to(peer, payload)

    def _send_to(self, peer: bytes, payload: bytes) -> None:
        try:
            self._socket.send_multipart([peer, payload], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            self._peers.discard(peer)
            gone = [client for client, owner in self._owners.items() if owner == peer]
            for client in gone:
                del self._owners[client]
            self._gone += gone
            LOG.warning("a client of the engine is gone: %s", error)

    def take_gone(self) -> list[int]:
        """Clients that went since this was last asked."""
        gone, self._gone = self._gone, []
        return gone

    @property
    def has_peers(self) -> bool:
        """Whether anybody has shown the secret."""
        return bool(self._peers)

    def close(self) -> None:
        """Close; what was sent has some time to arrive."""
        self._socket.close(linger=START_LINGER_MS)
        self._context.term()


@dataclass(slots=True, kw_only=True)
class EngineServer:
    """The loop: messages in, a step, its update out. Before a step that will take long, it says so."""

    engine: Engine
    socket: ServerSocket
    _refused: list[Finished] = field(default_factory=list)
    _is_draining: bool = False
    _is_ending: bool = False
    _last_sent: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.engine.on_step = self._announce

    def _announce(self, num_tokens: int) -> None:
        seconds = num_tokens * self.engine.token_seconds
        if seconds > HEARTBEAT_SECONDS:
            self.socket.send(Busy(seconds=seconds))

    def run(self) -> None:
        """Until a client says `Shutdown`."""
        with self.engine.loop():
            self._run()

    def _run(self) -> None:
        while True:
            if not self.engine.has_work() and not self._refused:
                self.socket.wait(HEARTBEAT_SECONDS)
            for message in self.socket.drain():
                self._handle(message)
            for client in self.socket.take_gone():
                self.engine.abort(ids=[one for one in self.engine.request_ids if client_of(one) == client])
            if self._is_ending and not (self._is_draining and self.engine.has_work()):
                return
            self._tell(self.engine.step() if self.engine.has_work() else None)

    def _tell(self, update: StepUpdate | None) -> None:
        if self._refused:
            refused, self._refused = tuple(self._refused), []
            update = StepUpdate(step=0, keys=b"", tokens=b"") if update is None else update
            update = msgspec.structs.replace(update, finished=update.finished + refused)
        now = time.monotonic()
        if update is not None:
            self.socket.send(update)
            self._last_sent = now
        elif now - self._last_sent >= HEARTBEAT_SECONDS / 2:
            self.socket.send(Heartbeat(stats=self.engine.stats()))
            self._last_sent = now

    def _handle(self, message: ClientMessage) -> None:
        if isinstance(message, GenerateRequest):
            self._submit(message)
        elif isinstance(message, AbortRequest):
            self.engine.abort(ids=message.ids, keys=message.keys)
        elif isinstance(message, ResetPrefixCache):
            self.engine.reset_prefix_cache()
        elif isinstance(message, (GoToSleep, WakeUp)):
            self._move_pools(message)
        elif isinstance(message, Shutdown):
            self._is_ending, self._is_draining = True, message.drain

    def _move_pools(self, message: GoToSleep | WakeUp) -> None:
        """Asleep or awake, and everybody is told; what cannot be done changes nothing."""
        engine, num_bytes, failed = self.engine, 0, None
        self.socket.send(Busy(seconds=SLEEP_PATIENCE_SECONDS))
        try:
            if isinstance(message, GoToSleep):
                num_bytes = engine.sleep(message.pools)
            else:
                engine.wake(message.pools)
        except (ConfigError, CapacityError) as error:
            failed = error
        state = SleepState(
            ticket=message.ticket,
            asleep=engine.sleeping.asleep,
            num_bytes=num_bytes,
            kind="" if failed is None else failed.kind,
            message="" if failed is None else str(failed),
        )
        if failed is None:
            LOG.info("asleep: %s; %d bytes given back", ", ".join(state.asleep) or "nothing", num_bytes)
        else:
            LOG.warning("memory was not moved: %s", failed)
        if self.socket.ready is not None:
            self.socket.ready = msgspec.structs.replace(self.socket.ready, asleep=state.asleep)
        self.socket.send(state)

    def _submit(self, request: GenerateRequest) -> None:
        """A request that cannot run is answered; it never harms another one."""
        try:
            self.engine.submit(request)
        except (RequestError, CapacityError) as error:
            param = error.param if isinstance(error, RequestError) else None
            self._refuse(request, error.kind, error.message, param or "")
        except Exception as error:
            LOG.exception("request %d could not be taken in", request.id)
            self._refuse(request, "", f"the request could not be taken in: {type(error).__name__}")

    def _refuse(self, request: GenerateRequest, kind: str, message: str, param: str = "") -> None:
        self._refused += [
            Finished(
                key=sequence_key(request.id, index), reason=FinishReason.ERROR, message=message, kind=kind, param=param
            )
            for index in range(min(request.params.n, 2**16))
        ]


def read_order() -> StartOrder | None:
    """The order on standard input, or None where the parent went without one. Raises `msgspec.ValidationError`."""
    line = sys.stdin.buffer.readline(MAX_ORDER_BYTES)
    return msgspec.json.decode(line, type=StartOrder) if line else None


def watch_parent(address: str) -> None:
    """End this process, whatever it does, when standard input ends; what the parent cannot remove any more, goes."""
    descriptor = sys.stdin.fileno()

    def watch() -> None:
        while os.read(descriptor, 4096):  # not through the buffer: its lock would be held when the interpreter ends
            pass
        remove_folder(address)
        os._exit(EXIT_FAILED)

    threading.Thread(target=watch, name="tenon-parent", daemon=True).start()


def remove_folder(address: str) -> None:
    """Remove the link's private folder, and nothing beside what belongs in it."""
    folder = Path(address.removeprefix("ipc://")).parent
    with suppress(OSError):  # the parent was first
        for name in (SOCKET_NAME, LOCK_NAME):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def import_early() -> None:
    """Import what takes long, while the parent still looks for the model."""
    preload_torch()
    import tenon_core.loading.checkpoint  # noqa: F401 - what needs no torch, while its libraries come
    import tenon_platforms.handshake
    import tenon_platforms.selection  # noqa: F401

    with suppress(ImportError):  # told where it is needed
        import_torch()
        gc.freeze()


def serve(order: StartOrder, socket: ServerSocket) -> None:
    """Start the engine, say that it is ready, and run its loop to the end."""
    from .start import start_engine

    seconds: dict[str, float] = {}
    engine = start_engine(EngineConfig.from_flat(**order.config), on_phase=seconds.__setitem__)
    gc.collect()
    gc.freeze()  # what start-up made lives on: later collections need not look at it
    while not socket.has_peers:
        socket.wait(HEARTBEAT_SECONDS)
        socket.drain()
    socket.ready = Ready(facts=engine.facts, start_seconds=seconds, kernels=engine.kernels)
    socket.send(socket.ready)
    try:
        EngineServer(engine=engine, socket=socket).run()
    finally:
        engine.shutdown()


def main() -> int:
    """The process; returns its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    import_early()
    order = read_order()
    if order is None:
        return 0
    watch_parent(order.address)
    setup_logging(order.log_level, format=order.log_format)
    socket = ServerSocket(address=order.address, secret=bytes.fromhex(order.secret))
    try:
        serve(order, socket)
    except TenonError as error:
        message = error.message if error.remedy is None else f"{error.message}\n  remedy: {error.remedy}"
        return _fail(socket, error.kind, message)
    except Exception as error:
        LOG.exception("the engine failed")
        return _fail(socket, "DeviceError", f"the engine failed: {type(error).__name__}: {error}")
    socket.close()
    return 0


def _fail(socket: ServerSocket, kind: str, message: str) -> int:
    deadline = time.monotonic() + START_LINGER_MS / 1000
    while not socket.has_peers and time.monotonic() < deadline:
        socket.wait(0.1)
        socket.drain()
    socket.send(Failed(kind=kind, message=message))
    socket.close()
    return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
