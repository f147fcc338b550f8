"""Checks of grammars before the engine sees them, in killable worker processes with a time and a memory limit.

What passed is remembered by its digest, so that an agent which sends the same schema again and again pays once; the
memory of it is bounded. Used from threads (`check`) and from asyncio (`check_async`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec

from tenon_core.sampling.structured import PARAM, StructuredOutputs
from tenon_platforms.errors import RequestError

from .worker_process import MIB, WorkerGoneError, WorkerLimits, WorkerPool

KEPT = 4096  # digests of 32 bytes


@dataclass(slots=True, kw_only=True)
class GrammarChecks:
    """Starts its workers as they are needed. Close it at the end."""

    limits: WorkerLimits = field(
        default_factory=lambda: WorkerLimits(seconds=4.0, memory_bytes=1024 * MIB, num_workers=2)
    )
    _pool: WorkerPool = field(init=False)
    _threads: ThreadPoolExecutor = field(init=False)
    _passed: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self._pool = WorkerPool(module="tenon_core.client.grammar_worker", start={}, limits=self.limits)
        self._threads = ThreadPoolExecutor(self.limits.num_workers, thread_name_prefix="tenon-grammar")

    def check(self, wanted: StructuredOutputs | None) -> None:
        """Raise `RequestError` where a grammar cannot be compiled, or not within its limits."""
        if wanted is None:
            return
        plain = msgspec.to_builtins(wanted)
        fingerprint = hashlib.sha256(msgspec.json.encode(plain)).digest()
        if fingerprint in self._passed:
            return
        try:
            reply = self._pool.ask({"wanted": plain}, what="checks grammars")
        except WorkerGoneError:
            raise RequestError(
                f"{PARAM} took more than {self.limits.seconds:g} s, or more memory than it may, to compile: use a"
                " simpler grammar",
                param=PARAM,
            ) from None
        if "error" in reply:
            raise RequestError(str(reply["error"]), param=PARAM)
        self._passed[fingerprint] = None
        while len(self._passed) > KEPT:
            self._passed.popitem(last=False)

    async def check_async(self, wanted: StructuredOutputs | None) -> None:
        """The same without holding up the event loop."""
        if wanted is not None:
            await asyncio.get_running_loop().run_in_executor(self._threads, self.check, wanted)

    def close(self) -> None:
        """End all workers."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._pool.close()
