"""Chat templates, rendered in a small pool of killable worker processes: a hostile one costs two seconds at most.

Used from threads (`render`) and from asyncio (`render_async`). A worker that passes its time is killed and replaced;
others go on meanwhile. Imports no Jinja: the workers do.
"""

from __future__ import annotations

import asyncio
import json
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tenon_platforms.errors import ConfigError, RequestError

from .template_worker import HEADER, MAX_FRAME

MIB = 2**20
START_SECONDS = 30.0  # a worker's start on a busy machine: an interpreter, Jinja, and the compilation


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateLimits:
    """What one rendering may take."""

    seconds: float = 2.0
    memory_bytes: int = 512 * MIB
    max_characters: int = 8 * MIB
    num_workers: int = 4


class WorkerGoneError(Exception):
    """A worker ended, or was too slow."""


class Worker:
    """One worker process. names: the variables of the template that a request may set."""

    def __init__(self, template: str, limits: TemplateLimits) -> None:
        self._limits = limits
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tenon_core.client.template_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C in the terminal is for the parent
        )
        start = {
            "template": template,
            "seconds": limits.seconds,
            "memory_bytes": limits.memory_bytes,
            "max_characters": limits.max_characters,
        }
        try:
            reply = self.ask(start, START_SECONDS)
        except WorkerGoneError:
            raise ConfigError("the process that renders chat templates did not start") from None
        if "error" in reply:
            self.close()
            raise ConfigError(
                f"the chat template is not usable: {reply['error']}", remedy="pass another one with --chat-template"
            )
        self.names = frozenset(map(str, reply["names"]))

    def ask(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Send one message and wait for the answer. Raises `WorkerGoneError`, the process being dead then."""
        assert self._process.stdin is not None
        deadline = time.monotonic() + seconds
        body = json.dumps(message).encode("ascii")
        try:
            self._process.stdin.write(HEADER.pack(len(body)) + body)
            self._process.stdin.flush()
            (length,) = HEADER.unpack(self._read(HEADER.size, deadline))
            if length > MAX_FRAME:
                raise WorkerGoneError
            reply = json.loads(self._read(length, deadline))
        except (OSError, ValueError, WorkerGoneError):
            self.close()
            raise WorkerGoneError from None
        if not isinstance(reply, dict):
            self.close()
            raise WorkerGoneError
        return reply

    def _read(self, count: int, deadline: float) -> bytes:
        assert self._process.stdout is not None
        pipe, pieces = self._process.stdout, bytearray()
        while len(pieces) < count:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise WorkerGoneError
            piece = pipe.read1(count - len(pieces))  # type: ignore[attr-defined]
            if not piece:
                raise WorkerGoneError
            pieces += piece
        return bytes(pieces)

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not sent yet has no reader any more
                    pipe.close()
        self._process.wait()


@dataclass(slots=True, kw_only=True)
class ChatTemplate:
    """One template and its workers, which are started as they are needed. Close it at the end."""

    source: str
    limits: TemplateLimits = field(default_factory=TemplateLimits)
    _idle: queue.LifoQueue[Worker] = field(default_factory=queue.LifoQueue)
    _places: threading.Semaphore = field(init=False)
    _threads: ThreadPoolExecutor = field(init=False)
    _names: frozenset[str] | None = None
    _is_closed: bool = False

    def __post_init__(self) -> None:
        self._places = threading.Semaphore(self.limits.num_workers)
        self._threads = ThreadPoolExecutor(self.limits.num_workers, thread_name_prefix="tenon-template")

    def check(self) -> frozenset[str]:
        """Start the first worker and compile; the names a request may set. Raises `ConfigError`."""
        if self._names is None:
            worker = self._worker()
            self._names = worker.names
            self._idle.put(worker)
        return self._names

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The prompt's text. Raises `RequestError` where the template refuses, or takes more than it may."""
        with self._places:
            worker = self._worker()
            try:
                reply = worker.ask({"variables": {**variables, "messages": list(messages)}}, self.limits.seconds)
            except WorkerGoneError:
                raise RequestError(
                    f"the chat template took more than {self.limits.seconds:g} s, or more memory than it may, for"
                    " these messages",
                    param="messages",
                ) from None
            if self._is_closed:
                worker.close()
            else:
                self._idle.put(worker)
        if "error" in reply:
            raise RequestError(f"the chat template refused the messages: {reply['error']}", param="messages")
        return str(reply["text"])

    async def render_async(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The same from asyncio; threads of its own, so that nothing else waits for a slow template."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: self.render(messages, **variables))

    def _worker(self) -> Worker:
        while True:
            try:
                worker = self._idle.get_nowait()
            except queue.Empty:
                return Worker(self.source, self.limits)
            if worker.is_alive:
                return worker
            worker.close()

    def close(self) -> None:
        """End all workers."""
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        while True:
            try:
                self._idle.get_nowait().close()
            except queue.Empty:
                return
