"""The listener for scrapers and probes (`--metrics-port`): /metrics and /health without a key, and nothing else.

It lives in the server's event loop and stays up while the server drains, so that the end is seen too.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from starlette.routing import Router

from . import info
from .access import GuardedNotFound, GuardedRoute, HostRule, Keys
from .app import Surround
from .http_protocol import protocol_class
from .services import Services

HEADER_SECONDS = 10.0
MAX_CONNECTIONS = 64


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None: the server proper ends this one."""
        yield


@dataclass(slots=True, kw_only=True)
class MetricsServer:
    """A running listener."""

    server: uvicorn.Server
    task: asyncio.Task[None]

    @classmethod
    def start(
        cls, services: Services, listener: socket.socket, *, gathers: bool = True, further: Sequence[GuardedRoute] = ()
    ) -> MetricsServer:
        """Answer from now on. gathers: with what the other API processes counted. further: routes for siblings."""
        nobody = Keys(())
        routes = [
            GuardedRoute(
                "/metrics", info.metrics(services, gathers=gathers), methods=["GET"], keys=nobody, is_public=True
            ),
            GuardedRoute("/health", info.health(services), methods=["GET"], keys=nobody, is_public=True),
            *further,
        ]
        app = Surround(
            app=Router(routes=routes, redirect_slashes=False, default=GuardedNotFound(keys=nobody)),
            hosts=HostRule.of(services.config.metrics_host, services.config.allowed_hosts),
            logs=False,
        )
        server = _Server(
            uvicorn.Config(
                app,
                http=protocol_class(HEADER_SECONDS),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=MAX_CONNECTIONS,
                timeout_graceful_shutdown=1,
            )
        )
        return cls(server=server, task=asyncio.get_running_loop().create_task(server.serve(sockets=[listener])))

    async def stop(self) -> None:
        """Close it."""
        self.server.should_exit = True
        await asyncio.wait({self.task}, timeout=5)
