"""Chat templates, rendered in a small pool of killable worker processes: a hostile one costs two seconds at most.

Used from threads (`render`) and from asyncio (`render_async`). Imports no Jinja: the workers do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tenon_platforms.errors import ConfigError, RequestError

from .worker_process import MIB, WorkerGoneError, WorkerLimits, WorkerPool


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateLimits(WorkerLimits):
    """What one rendering may take."""

    max_characters: int = 8 * MIB


@dataclass(slots=True, kw_only=True)
class ChatTemplate:
    """One template and its workers, which are started as they are needed. Close it at the end."""

    source: str
    limits: TemplateLimits = field(default_factory=TemplateLimits)
    _pool: WorkerPool = field(init=False)
    _threads: ThreadPoolExecutor = field(init=False)
    _names: frozenset[str] | None = None

    def __post_init__(self) -> None:
        self._pool = WorkerPool(
            module="tenon_core.client.template_worker",
            start={"template": self.source, "max_characters": self.limits.max_characters},
            limits=self.limits,
        )
        self._threads = ThreadPoolExecutor(self.limits.num_workers, thread_name_prefix="tenon-template")

    def check(self) -> frozenset[str]:
        """Start the first worker and compile; the names a request may set. Raises `ConfigError`."""
        if self._names is None:
            try:
                reply = self._pool.begin()
            except WorkerGoneError:
                raise ConfigError("the process that renders chat templates did not start") from None
            if "error" in reply:
                self._pool.close()
                raise ConfigError(
                    f"the chat template is not usable: {reply['error']}", remedy="pass another one with --chat-template"
                )
            self._names = frozenset(map(str, reply["names"]))
        return self._names

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The prompt's text.

        Raises `RequestError` where the template refuses, or takes more than it may; `WorkerLostError`.
        """
        try:
            reply = self._pool.ask(
                {"variables": {**variables, "messages": list(messages)}}, what="renders chat templates"
            )
        except WorkerGoneError:
            raise RequestError(
                f"the chat template took more than {self.limits.seconds:g} s, or more memory than it may, for"
                " these messages",
                param="messages",
            ) from None
        if "error" in reply:
            raise RequestError(f"the chat template refused the messages: {reply['error']}", param="messages")
        return str(reply["text"])

    async def render_async(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The same from asyncio; threads of its own, so that nothing else waits for a slow template."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: self.render(messages, **variables))

    def close(self) -> None:
        """End all workers."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._pool.close()
