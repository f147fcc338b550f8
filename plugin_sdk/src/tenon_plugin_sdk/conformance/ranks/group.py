"""A group of rank processes as its parent sees it: an order to all, an answer from each, within a limit."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

from ..registry import ConformanceError, NotApplicableError
from ..subject import Subject

START_LIMIT_S = 180.0  # ten times what a start takes on a quiet machine
ANSWER_LIMIT_S = 60.0
MODULE = f"{__package__}.rank"


class HangError(ConformanceError):
    """A rank did not answer in time."""


@dataclass(slots=True, kw_only=True)
class Rank:
    """One process. answers: lines as they come, None at its end."""

    process: subprocess.Popen[str]
    log: IO[str]
    answers: queue.Queue[str | None] = field(default_factory=queue.Queue)
    listener: threading.Thread | None = None

    def listen(self) -> None:
        """Read until the process ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put(None)

    def end(self) -> None:
        """Kill it and close what it was spoken to through."""
        self.process.kill()
        self.process.wait(30)
        if self.listener is not None:
            self.listener.join(30)
        for stream in (self.process.stdin, self.process.stdout, self.log):
            if stream is not None:
                with suppress(BrokenPipeError):  # what was still to be written
                    stream.close()

    def said(self) -> str:
        """The end of what it wrote to standard error."""
        self.log.seek(0)
        return self.log.read()[-1500:]


@dataclass(slots=True, kw_only=True)
class RankGroup:
    """N ranks. alignment: bytes a message must be a multiple of, as their flags say."""

    ranks: list[Rank]
    alignment: int = 1
    is_broken: bool = False

    @classmethod
    def of(cls, subject: Subject, size: int) -> RankGroup:
        """The subject's group of this size; made anew where it is broken."""
        name = f"ranks-{size}"
        held = subject.shared.get(name)
        if held is None or held.is_broken:
            subject.shared[name] = held = cls.start(subject, size)
        group: RankGroup = held
        return group

    @classmethod
    def start(cls, subject: Subject, size: int) -> RankGroup:
        """Start them and wait until all have joined."""
        if subject.manifest is None:
            raise NotApplicableError("ranks import the platform by its entry, and this one is not installed")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        options = json.dumps(subject.options)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
        ranks = []
        for rank in range(size):
            log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed with the group
            process = subprocess.Popen(
                [sys.executable, "-m", MODULE, subject.manifest.entry, options, str(rank), str(size), address],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment,
            )  # fmt: skip
            ranks.append(Rank(process=process, log=log))
            ranks[-1].listener = threading.Thread(target=ranks[-1].listen, daemon=True)
            ranks[-1].listener.start()
        group = cls(ranks=ranks)
        for place, answer in enumerate(group.answers(START_LIMIT_S)):
            if (answer["rank"], answer["size"]) != (place, size):
                group.kill()
                raise ConformanceError(f"rank {place} of {size} says it is {answer['rank']} of {answer['size']}")
            group.alignment = answer["alignment"]
        return group

    def ask(
        self, op: str, *, limit: float = ANSWER_LIMIT_S, but: int | None = None, **order: Any
    ) -> list[dict[str, Any]]:
        """Order all; answers by rank. but: one whose answer is not waited for."""
        for rank in self.ranks:
            self._order(rank, {"op": op, **order})
        return self.answers(limit, self._all_but(but))

    def values(self, op: str, **order: Any) -> list[Any]:
        """As `ask`: the values; raises `ConformanceError` where a rank answers an error."""
        answers = self.ask(op, **order)
        for place, answer in enumerate(answers):
            if answer["error"] is not None:
                self.kill()
                raise ConformanceError(f"rank {place} in {op}({order}): {answer['error']}")
        return [answer["value"] for answer in answers]

    def end_one(self, place: int) -> None:
        """One rank ends without leaving the group."""
        self._order(self.ranks[place], {"op": "exit"})
        self.ranks[place].process.wait(30)

    def ask_rest(self, op: str, place: int, *, limit: float, **order: Any) -> list[dict[str, Any]]:
        """Order all ranks but one that has ended."""
        rest = self._all_but(place)
        for rank in rest:
            self._order(rank, {"op": op, **order})
        return self.answers(limit, rest)

    def _all_but(self, place: int | None) -> list[Rank]:
        return [rank for number, rank in enumerate(self.ranks) if number != place]

    def answers(self, limit: float, ranks: list[Rank] | None = None) -> list[dict[str, Any]]:
        """One line from each. Raises `HangError` where one does not answer in `limit` seconds."""
        deadline, found = time.monotonic() + limit, []
        for place, rank in enumerate(self.ranks if ranks is None else ranks):
            try:
                line = rank.answers.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                said = rank.said()
                self.kill()
                raise HangError(f"rank {place} does not answer within {limit:.0f} s:\n{said}".strip()) from None
            if line is None:
                said = rank.said()
                self.kill()
                raise ConformanceError(f"rank {place} ended:\n{said}")
            found.append(json.loads(line))
        return found

    def kill(self) -> None:
        """End all ranks; the group is of no more use."""
        self.is_broken = True
        for rank in self.ranks:
            rank.end()

    def close(self) -> None:
        """As `kill`, at the end of a run."""
        if not self.is_broken:
            self.kill()

    def _order(self, rank: Rank, order: dict[str, Any]) -> None:
        assert rank.process.stdin is not None
        try:
            rank.process.stdin.write(json.dumps(order) + "\n")
            rank.process.stdin.flush()
        except BrokenPipeError:
            pass  # it ended: the answer says so
