"""One rank: `python -m tenon_plugin_sdk.conformance.ranks.rank ENTRY OPTIONS DEVICE RANK SIZE ADDRESS`.

Orders come as lines of JSON on standard input, answers go out the same way; what a plugin prints goes to standard
error. An order that raises is answered with the error, and the rank goes on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from ..subject import Subject
from .draws import counts, drawn


def main(arguments: list[str]) -> None:
    """Open the platform, join the group, obey."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    entry, options, rank, size, address = arguments
    module, _, attribute = entry.partition(":")
    platform = attrgetter(attribute)(import_module(module))(json.loads(options))
    subject = Subject.of_rank(platform, int(rank), int(size))
    group = platform.collectives(subject.device, rank=int(rank), size=int(size), address=address)
    member = Member(subject, group)
    _say(out, {"ready": True, "rank": group.rank, "size": group.size, "alignment": group.flags.alignment})
    for line in sys.stdin:
        order = json.loads(line)
        if order["op"] == "exit":
            os._exit(0)  # without leaving the group: as a process that is killed
        begin = time.monotonic()
        try:
            with subject.device.inference_context():
                answer = {"value": getattr(member, order.pop("op"))(**order), "error": None}
        except Exception as error:  # noqa: BLE001 - told to the parent, which knows whether it was expected
            answer = {"value": None, "error": f"{type(error).__name__}: {error}"}
        _say(out, {**answer, "begin": begin, "end": time.monotonic()})


def _say(out: Any, answer: dict[str, Any]) -> None:
    out.write(json.dumps(answer) + "\n")
    out.flush()


class Member:
    """What can be ordered. Every method returns plain data."""

    def __init__(self, subject: Subject, group: Any) -> None:
        self.subject, self.group = subject, group

    def all_reduce(self, seed: int, shape: list[int], dtype: str) -> Any:
        return self._in_place(seed, shape, dtype, self.group.all_reduce)

    def broadcast(self, seed: int, shape: list[int], dtype: str, source: int) -> Any:
        return self._in_place(seed, shape, dtype, lambda x: self.group.broadcast(x, source))

    def reduce_scatter(self, seed: int, shape: list[int], dtype: str) -> Any:
        return self._plain(self.group.reduce_scatter(self._mine(seed, shape, dtype)))

    def all_gather(self, seed: int, shape: list[int], dtype: str) -> Any:
        return self._plain(self.group.all_gather(self._mine(seed, shape, dtype)))

    def all_to_all(self, seed: int, width: int, dtype: str, empty: bool) -> Any:
        rank, table = self.group.rank, counts(seed, self.group.size, empty=empty)
        mine = self._mine(seed, [sum(table[rank]), width], dtype)
        return self._plain(self.group.all_to_all(mine, table[rank], [row[rank] for row in table]))

    def ring(self, seed: int, shape: list[int], dtype: str) -> Any:
        """Send to the next rank, receive from the one before; even ranks send first, so somebody always receives."""
        rank, size = self.group.rank, self.group.size
        mine = self._mine(seed, shape, dtype)
        into = self.subject.device.zeros(tuple(shape), mine.dtype)
        for turn in (0, 1):
            if rank % 2 == turn:
                self.group.send(mine, (rank + 1) % size)
            else:
                into = self.group.receive(into, (rank - 1) % size)
        return self._plain(into)

    def many(self, seed: int, dtype: str, times: int) -> Any:
        """Operations back to back, nothing waited for in between; the sum over all of them."""
        found = []
        for number in range(times):
            x = self._mine(seed + number, [1 + 37 * (number % 5)], dtype)
            found.append(self.group.all_reduce(x))
            if number % 3 == 2:
                found.append(
                    self.group.broadcast(self._mine(seed + 500 + number, [9], dtype), number % self.group.size)
                )
        return [self._plain(one) for one in found]

    def barrier(self, wait: list[float]) -> Any:
        """When this rank came and when it was let go."""
        time.sleep(wait[self.group.rank])
        came = time.monotonic()
        self.group.barrier()
        return [came, time.monotonic()]

    def agree(self, texts: list[str]) -> Any:
        return self.group.agree(texts[self.group.rank])

    def stall(self, seconds: float, patience: float, absent: int) -> Any:
        """One rank stays away; the others must not wait for it for ever."""
        self.group.set_timeout(patience)
        if self.group.rank == absent:
            time.sleep(seconds)
            return "stayed away"
        self._wait(self.group.all_reduce(self._mine(1, [64], "float32")))
        return "came through"

    def lost(self, patience: float) -> Any:
        """Another rank has ended."""
        self.group.set_timeout(patience)
        self._wait(self.group.all_reduce(self._mine(2, [64], "float32")))
        return "came through"

    def close(self) -> Any:
        self.group.close()
        return None

    def _in_place(self, seed: int, shape: list[int], dtype: str, op: Callable[[Tensor], Tensor]) -> Any:
        x = self._mine(seed, shape, dtype)
        returned = op(x)
        return {"returned": self._plain(returned), "kept": self._plain(x)}

    def _mine(self, seed: int, shape: list[int], dtype: str) -> Tensor:
        return self.subject.to_device(drawn(seed, self.group.rank, tuple(shape), getattr(torch, dtype)))

    def _plain(self, x: Tensor) -> Any:
        host = self.subject.to_host(x)
        return {"shape": list(host.shape), "dtype": str(host.dtype), "values": host.double().flatten().tolist()}

    def _wait(self, x: Tensor) -> None:
        self.subject.to_host(x)


if __name__ == "__main__":
    main(sys.argv[1:])
