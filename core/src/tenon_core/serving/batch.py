"""`run_batch`: a batch file through the server's own application, without a server.

The engine is a process of its own, and every line goes through the routes as a request would: the same checks, the
same answers. As many lines are under way as the engine runs at once, and a few more; the rest stays in the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import httpx
import msgspec

from tenon_core.client.engine_process import EngineProcess
from tenon_core.config import EngineConfig
from tenon_platforms.errors import ConfigError

from .app import POSTS, make_app
from .batch_file import BadLineError, BatchOutput, BatchRequest, parse_line, read_lines
from .config import ServerConfig
from .lifetime import INTERRUPTED, Lifetime

LOG = logging.getLogger(__name__)
SPARE = 1.25  # lines under way for each that the engine runs at once
RETRIES = 5
RETRY_STATUS = frozenset({429, 503})
TELL_SECONDS = 10.0
NO_LINES = frozenset({"/tokenize", "/detokenize"})
URLS = frozenset(path for path in POSTS - NO_LINES if "{" not in path)


@dataclass(slots=True, kw_only=True)
class Tally:
    """What became of the lines of this run."""

    num_ok: int = 0
    num_refused: int = 0  # answered, with an error
    num_bad: int = 0  # no request
    num_skipped: int = 0  # answered by an earlier run

    @property
    def num_done(self) -> int:
        """Records written."""
        return self.num_ok + self.num_refused + self.num_bad

    def text(self) -> str:
        """For a person."""
        parts = [f"{self.num_ok} answered", f"{self.num_refused} refused", f"{self.num_bad} lines that are no request"]
        return ", ".join(parts + ([f"{self.num_skipped} answered before"] if self.num_skipped else []))


@dataclass(slots=True, kw_only=True)
class BatchLife(Lifetime):
    """A server's life without its web server: up, until it is closed."""

    up: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def on_ready(self, seconds: float) -> None:
        LOG.info("ready after %.1f s", seconds)
        self.up.set()

    def on_end(self) -> None:
        self.over.set()


@dataclass(slots=True, kw_only=True)
class BatchRun:
    """One file's run. client: calls the application."""

    client: httpx.AsyncClient
    output: BatchOutput
    width: int
    max_bytes: int
    tally: Tally = field(default_factory=Tally)
    _told: float = field(default_factory=time.monotonic)

    async def run(self, source: BinaryIO) -> None:
        """Every line of `source`."""
        running: set[asyncio.Task[None]] = set()
        seen: set[bytes] = set()
        try:
            for number, line in read_lines(source, self.max_bytes):
                request = self._request(number, line, seen)
                if request is None:
                    continue
                running.add(asyncio.ensure_future(self._answer(request)))
                if len(running) >= self.width:
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _request(self, number: int, line: bytes | None, seen: set[bytes]) -> BatchRequest | None:
        """A line's request, or None where it is recorded already, now or by an earlier run."""
        try:
            request = parse_line(number, line, URLS)
            key = request.custom_id.encode("utf-8", "surrogatepass")
            if key in seen:
                raise BadLineError(f"line {number}: custom_id {request.custom_id!r:.80} came before")
            seen.add(key)
        except BadLineError as error:
            if self.output.has(error.custom_id, number):
                self.tally.num_skipped += 1
            else:
                self.tally.num_bad += 1
                self.output.write(error.custom_id, line=number, error={"code": error.code, "message": error.message})
            return None
        if self.output.has(request.custom_id, number):
            self.tally.num_skipped += 1
            return None
        return request

    async def _answer(self, request: BatchRequest) -> None:
        headers = {"content-type": "application/json"}
        for attempt in range(RETRIES):
            answer = await self.client.post(request.url, content=request.body, headers=headers)
            if answer.status_code not in RETRY_STATUS or attempt == RETRIES - 1:
                break
            await asyncio.sleep(2.0**attempt)  # the queue is full, or the engine starts again
        response = {
            "status_code": answer.status_code,
            "request_id": answer.headers.get("x-request-id", ""),
            "body": msgspec.Raw(answer.content),
        }
        self.output.write(request.custom_id, line=request.line, response=response)
        if answer.status_code == 200:
            self.tally.num_ok += 1
        else:
            self.tally.num_refused += 1
        if time.monotonic() - self._told > TELL_SECONDS:
            self._told = time.monotonic()
            LOG.info("%s so far", self.tally.text())


def run_batch(
    engine_config: EngineConfig, server_config: ServerConfig, source: Path, output: Path
) -> tuple[int, Tally]:
    """(exit code, what became of the lines). Raises `TenonError` where the files or the engine fail."""
    server_config.check()
    if output.resolve() == source.resolve():
        raise ConfigError("the batch's input and output are the same file", remedy="name another output file")
    try:
        lines = source.open("rb")
    except OSError as error:
        raise ConfigError(f"the input {source} cannot be read: {error.strerror}") from None
    with lines, BatchOutput(path=output) as records:
        life = BatchLife(
            engine_config=engine_config,
            server_config=server_config,
            process=EngineProcess(),
            began=time.monotonic(),
        )
        return asyncio.run(_run(life, lines, records))


async def _run(life: BatchLife, lines: BinaryIO, records: BatchOutput) -> tuple[int, Tally]:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for one in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(one, stop.set)
    starter = asyncio.ensure_future(life._start())
    tally = Tally()
    try:
        if await _first(life.up, life.over, stop) is life.up:
            assert life.services.facts is not None
            transport = httpx.ASGITransport(app=make_app(life.services), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client:
                run = BatchRun(
                    client=client, output=records, tally=tally, max_bytes=life.server_config.max_body_bytes,
                    width=max(int(life.services.facts.max_num_seqs * SPARE), 2),
                )  # fmt: skip
                work = asyncio.ensure_future(run.run(lines))
                work.add_done_callback(lambda _: life.over.set() if not stop.is_set() else None)
                await _first(life.over, stop)
                if work.done():
                    work.result()
                work.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await work
    finally:
        await life.close(starter)
    if life.error is not None:
        raise life.error
    return (INTERRUPTED if stop.is_set() else 0), tally


async def _first(*events: asyncio.Event) -> asyncio.Event:
    """The first of these that is set."""
    waits = {asyncio.ensure_future(event.wait()): event for event in events}
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return waits[done.pop()]
    finally:
        for wait in waits:
            wait.cancel()
