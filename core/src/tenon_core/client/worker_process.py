"""Killable worker processes for work that strangers' input can make endless: a process, and a small pool of them.

A worker that passes its time is killed and replaced; others go on meanwhile. Used from threads. Each runs
a module of ours, so a script without a main guard may use them. The other half is `worker_frames.py`.
"""

from __future__ import annotations

import json
import logging
import queue
import select
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tenon_core.children import module_command
from tenon_platforms.errors import DeviceError

from .worker_frames import HEADER, MAX_FRAME

LOG = logging.getLogger(__name__)
MIB = 2**20
START_SECONDS = 30.0  # a worker's start on a busy machine: an interpreter and its imports


class WorkerGoneError(Exception):
    """A worker took longer than it may."""


class WorkerDiedError(WorkerGoneError):
    """A worker ended before its time was over: nothing that its request need have done."""


class WorkerLostError(DeviceError):
    """Worker processes end as they are used, or do not start: the machine's trouble, not the request's."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the process that {what} ended twice in the middle of its work: send the request again; if it goes on,"
            " see whether this machine has memory left and the server's log"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """What one request to a worker may take, and how many workers there may be."""

    seconds: float = 2.0
    memory_bytes: int = 512 * MIB
    num_workers: int = 4


class WorkerProcess:
    """One process. `begun`: its reply to the first message. Raises `WorkerDiedError` where it does not start."""

    def __init__(self, module: str, start: Mapping[str, Any], limits: WorkerLimits) -> None:
        limiting = {"seconds": limits.seconds, "memory_bytes": limits.memory_bytes}
        try:
            self._process = subprocess.Popen(
                module_command(module),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C in the terminal is for the parent
            )
            self.begun = self.ask({**start, **limiting}, START_SECONDS)
        except (OSError, WorkerGoneError):
            raise WorkerDiedError from None

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
        except WorkerGoneError:
            self.close()
            raise
        except (OSError, ValueError):
            self.close()
            raise WorkerDiedError from None
        if not isinstance(reply, dict):
            self.close()
            raise WorkerDiedError
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
                raise WorkerDiedError
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
class WorkerPool:
    """Workers of one module, all begun with the same message, started as they are needed. Close it at the end."""

    module: str
    start: Mapping[str, Any]
    limits: WorkerLimits = field(default_factory=WorkerLimits)
    _idle: queue.LifoQueue[WorkerProcess] = field(default_factory=queue.LifoQueue)
    _places: threading.Semaphore = field(init=False)
    _is_closed: bool = False

    def __post_init__(self) -> None:
        self._places = threading.Semaphore(self.limits.num_workers)

    def begin(self) -> dict[str, Any]:
        """Start a worker, if none is idle, and return what it said at its start. Raises `WorkerGoneError`."""
        worker = self._worker()
        self._idle.put(worker)
        return worker.begun

    def ask(self, message: Mapping[str, Any], *, what: str) -> dict[str, Any]:
        """One request's answer; waits for a free worker. what: the workers' business, for an error.

        One that dies (killed from outside, for want of memory) is replaced, once. Raises `WorkerGoneError` where it
        took more time than it may, `WorkerLostError` where the second one died too.
        """
        with self._places:
            try:
                worker, reply = self._asked(message)
            except WorkerDiedError:
                LOG.warning("a process that %s ended in the middle of its work; another one takes it on", what)
                try:
                    worker, reply = self._asked(message)
                except WorkerDiedError:
                    raise WorkerLostError(what) from None
            if self._is_closed:
                worker.close()
            else:
                self._idle.put(worker)
        return reply

    def _asked(self, message: Mapping[str, Any]) -> tuple[WorkerProcess, dict[str, Any]]:
        worker = self._worker()
        return worker, worker.ask(message, self.limits.seconds)

    def _worker(self) -> WorkerProcess:
        while True:
            try:
                worker = self._idle.get_nowait()
            except queue.Empty:
                return WorkerProcess(self.module, self.start, self.limits)
            if worker.is_alive:
                return worker
            worker.close()

    def close(self) -> None:
        """End all workers."""
        self._is_closed = True
        while True:
            try:
                self._idle.get_nowait().close()
            except queue.Empty:
                return
