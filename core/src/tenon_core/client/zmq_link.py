"""The client's end of a link to an engine process: ZMQ over a unix socket, typed msgpack, sizes capped.

Every frame that goes out carries the link's secret, without which the engine answers nobody; what comes in is decoded
into the message types or dropped and counted. The socket lies in a private folder (0700) and is itself 0600.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import zmq
import zmq.asyncio

from tenon_core.engine.messages import AbortRequest, ClientMessage, EngineMessage, GenerateRequest, Ready, Shutdown
from tenon_core.engine.wire import MAX_MESSAGE_BYTES
from tenon_core.sampling.validate import ModelFacts
from tenon_platforms.errors import CapacityError

LOG = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class ZmqLink:
    """An `EngineLink` across processes. on_message is called in the event loop with everything the engine says."""

    address: str
    secret: bytes
    on_message: Callable[[EngineMessage], None]
    num_dropped: int = 0
    _facts: ModelFacts | None = None
    _context: zmq.asyncio.Context = field(default_factory=zmq.asyncio.Context)
    _socket: zmq.asyncio.Socket | None = None
    _reader: asyncio.Task[None] | None = None
    _encoder: msgspec.msgpack.Encoder = field(default_factory=msgspec.msgpack.Encoder)
    _decoder: msgspec.msgpack.Decoder[EngineMessage] = field(
        default_factory=lambda: msgspec.msgpack.Decoder(EngineMessage)
    )

    @property
    def facts(self) -> ModelFacts:
        """The model's facts. Raises `CapacityError` before the engine is ready."""
        if self._facts is None:
            raise CapacityError("the engine is not ready yet", remedy="try again later")
        return self._facts

    def open(self) -> None:
        """Connect (the engine may bind later) and read from now on."""
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.connect(self.address)
        self._socket = socket
        self._reader = asyncio.get_running_loop().create_task(self._read(socket))

    def hello(self) -> None:
        """Tell the engine where to answer."""
        self._send_frames(b"")

    async def _read(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            frames = await socket.recv_multipart()
            message = self._decoded(frames)
            if message is None:
                continue
            if isinstance(message, Ready):
                self._facts = message.facts
            self.on_message(message)

    def _decoded(self, frames: Sequence[bytes]) -> EngineMessage | None:
        try:
            if len(frames) != 1:
                raise msgspec.DecodeError(f"{len(frames)} parts")
            return self._decoder.decode(frames[0])
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self.num_dropped += 1
            LOG.warning("a frame from the engine was dropped: %s", error)
            return None

    def submit(self, request: GenerateRequest) -> None:
        """Send a request; a refusal comes back as the request's end."""
        self.send(request)

    def abort(self, *, ids: Sequence[int] = (), keys: Sequence[int] = ()) -> None:
        """End requests, or single samples."""
        self.send(AbortRequest(ids=tuple(ids), keys=tuple(keys)))

    def shutdown(self, *, drain: bool = False) -> None:
        """Ask the engine to end."""
        self.send(Shutdown(drain=drain))

    def send(self, message: ClientMessage) -> None:
        """Any message."""
        self._send_frames(self._encoder.encode(message))

    def _send_frames(self, payload: bytes) -> None:
        if self._socket is not None:
            self._socket.send_multipart([self.secret, payload])

    async def close(self) -> None:
        """Close the socket; messages under way are lost."""
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError):
                await self._reader
            self._reader = None
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None
        self._context.term()
