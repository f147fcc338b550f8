"""The ranks that share a model: this process is the first; the others are processes that run the steps it sends them.

    first rank    order -> stdin of each other rank        step delta -> stdin of each, then its own launch
    other ranks   the same start, then every delta that comes, until their standard input ends

All say the same to each other in the same order (`Collectives`), so a step that fails on one leaves the others waiting:
with several ranks a failed step ends the engine.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tenon_core.children import module_command
from tenon_core.config import EngineConfig
from tenon_core.execution.delta import StepDelta, encode_delta
from tenon_core.execution.executor import Executor
from tenon_core.execution.results import FailedStep, LaunchedStep, StepResult
from tenon_core.execution.runner import GrammarMasks
from tenon_core.observability.log import current_format
from tenon_platforms.collectives import Collectives
from tenon_platforms.errors import DeviceError

MODULE = "tenon_core.engine.rank_process"
PATIENCE_SECONDS = 10.0  # for the other ranks' ends
WATCH_SECONDS = 0.2
LENGTH_BYTES = 4  # little-endian, before each delta


class RankLostError(DeviceError):
    """The ranks no longer run the same steps: the engine cannot go on."""


class RankOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What another rank's process reads first, a line of JSON. address: where the ranks meet."""

    config: dict[str, Any]
    rank: int
    size: int
    address: str
    log_level: str = "info"
    log_format: str = "text"


@dataclass(slots=True, kw_only=True)
class Ranks:
    """The other ranks' processes. folder: holds the file by which all find each other."""

    size: int
    folder: Path
    collectives: Collectives = field(default_factory=Collectives)  # of this process, once all have joined
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _is_closing: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def start(cls, config: EngineConfig, size: int) -> Ranks:
        """Start them; they join the group as this process does."""
        ranks = cls(size=size, folder=Path(tempfile.mkdtemp(prefix="tenon-ranks-")))
        for rank in range(1, size):
            process = subprocess.Popen(
                module_command(MODULE), stdin=subprocess.PIPE, stdout=sys.stderr, start_new_session=True
            )
            ranks._processes.append(process)
            order = RankOrder(
                config=config.flat(), rank=rank, size=size, address=ranks.address, log_format=current_format(),
                log_level=logging.getLevelName(logging.getLogger().getEffectiveLevel()).lower(),
            )  # fmt: skip
            ranks._write(process, msgspec.json.encode(order) + b"\n")
        return ranks

    @property
    def address(self) -> str:
        """Where the ranks find each other, as `Collectives` takes it."""
        return (self.folder / "meeting").as_uri()

    def join(self, make: Callable[[], Collectives]) -> Collectives:
        """The group, once every rank has come. Raises `RankLostError` where one ends before."""
        found: list[Collectives | BaseException] = []

        def joining() -> None:
            try:
                found.append(make())
            except BaseException as error:  # noqa: BLE001 - raised below, in the thread that asked
                found.append(error)

        thread = threading.Thread(target=joining, name="tenon-join", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.1)
            self.check()
        (group,) = found
        if isinstance(group, BaseException):
            raise group
        return group

    def watch(self, collectives: Collectives) -> None:
        """From now on a rank that ends breaks the group: nobody waits for it for long."""
        self.collectives = collectives
        threading.Thread(target=self._watching, args=(collectives,), name="tenon-ranks", daemon=True).start()

    def _watching(self, collectives: Collectives) -> None:
        while not self._is_closing.wait(WATCH_SECONDS):
            if any(process.poll() is not None for process in self._processes):
                collectives.abort()
                return

    def check(self) -> None:
        """Raise `RankLostError` where a rank has ended."""
        for rank, process in enumerate(self._processes, start=1):
            if (code := process.poll()) is not None:
                how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
                raise RankLostError(
                    f"rank {rank} of {self.size} ended {how}", remedy="see its lines above; start the engine again"
                )

    def send(self, delta: StepDelta) -> None:
        """Let the other ranks run this step. Raises `RankLostError` where one is gone."""
        data = encode_delta(delta)
        framed = len(data).to_bytes(LENGTH_BYTES, "little") + data
        for process in self._processes:
            self._write(process, framed)

    def _write(self, process: subprocess.Popen[bytes], data: bytes) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(data)
            process.stdin.flush()
        except OSError:
            self.check()
            raise RankLostError("a rank takes nothing any more", remedy="start the engine again") from None

    def close(self) -> None:
        """End the other ranks, in order if they can, and remove the folder. May be called twice."""
        self._is_closing.set()
        for process in self._processes:
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        (self.folder / "meeting").unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()


@dataclass(slots=True, kw_only=True)
class _SharedStep:
    """A step that all ranks run: where it fails here, nobody knows where the others are."""

    handle: LaunchedStep

    def result(self) -> StepResult:
        try:
            return self.handle.result()
        except Exception as error:
            raise RankLostError(
                f"a step failed on the first of several ranks: {type(error).__name__}: {error}",
                remedy="start the engine again",
            ) from error

    def discard(self) -> None:
        self.handle.discard()


@dataclass(slots=True, kw_only=True)
class RanksExecutor:
    """Steps of this process's runner and of the other ranks'."""

    own: Executor
    ranks: Ranks

    @property
    def num_compiles(self) -> int:
        return self.own.num_compiles

    def launch(self, delta: StepDelta, masks: GrammarMasks | None = None) -> LaunchedStep:
        try:
            self.ranks.send(delta)
        except RankLostError as error:
            return FailedStep(error)
        return _SharedStep(handle=self.own.launch(delta, masks))

    def shutdown(self) -> None:
        self.ranks.close()
        self.own.shutdown()
        self.ranks.collectives.close()
