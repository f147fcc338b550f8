"""Checks of grammars before the engine sees them, in killable worker processes with a time and a memory limit.

A grammar is compiled there as the engine will do it: over bytes where that is lazy (guidance), over the model's own
vocabulary where it is not (xgrammar), in workers of their own. What passed is remembered by its digest, so that an
agent which sends the same schema again and again pays once; the memory of it is bounded. Used from threads (`check`)
and from asyncio (`check_async`).
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tenon_core.sampling.backends import backend_for
from tenon_core.sampling.structured import PARAM, StructuredOutputs
from tenon_core.sampling.validate import ModelFacts
from tenon_platforms.errors import RequestError

from .tokenizer import ClientTokenizer
from .worker_process import MIB, WorkerGoneError, WorkerLimits, WorkerPool

KEPT = 4096  # digests of 32 bytes


def grammar_vocabulary(tokenizer: ClientTokenizer, facts: ModelFacts) -> dict[str, Any]:
    """What `Vocabulary.of` takes, for a model."""
    return {
        "tokenizer_json": tokenizer.backend.to_str(), "size": facts.vocab_size, "eos_token_ids": facts.eos_token_ids,
    }  # fmt: skip


@dataclass(slots=True, kw_only=True)
class GrammarChecks:
    """Starts its workers as they are needed. Close it at the end.

    backend: the operator's choice of a library. vocabulary: asked once the model is known, what `Vocabulary.of` takes.
    """

    backend: str = "auto"
    vocabulary: Callable[[], dict[str, Any] | None] | None = None
    limits: WorkerLimits = field(
        default_factory=lambda: WorkerLimits(seconds=4.0, memory_bytes=1024 * MIB, num_workers=2)
    )
    _pools: dict[str, WorkerPool] = field(default_factory=dict)  # by library
    _pools_lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: ThreadPoolExecutor = field(init=False)
    _passed: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(self.limits.num_workers, thread_name_prefix="tenon-grammar")

    def check(self, wanted: StructuredOutputs | None) -> None:
        """Raise `RequestError` where a grammar cannot be compiled, or not within its limits."""
        if wanted is None:
            return
        plain = msgspec.to_builtins(wanted)
        fingerprint = hashlib.sha256(msgspec.json.encode(plain)).digest()
        if fingerprint in self._passed:
            return
        pool = self._pool(backend_for(wanted, self.backend))
        try:
            reply = pool.ask({"wanted": plain}, what="checks grammars")
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

    def _pool(self, library: str) -> WorkerPool:
        with self._pools_lock:
            if library not in self._pools:
                vocabulary = self.vocabulary() if library == "xgrammar" and self.vocabulary is not None else None
                start = {"backend": library, "vocabulary": vocabulary}
                self._pools[library] = WorkerPool(
                    module="tenon_core.client.grammar_worker", start=start, limits=self.limits
                )
            return self._pools[library]

    async def check_async(self, wanted: StructuredOutputs | None) -> None:
        """The same without holding up the event loop."""
        if wanted is not None:
            await asyncio.get_running_loop().run_in_executor(self._threads, self.check, wanted)

    def close(self) -> None:
        """End all workers."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for pool in self._pools.values():
            pool.close()
