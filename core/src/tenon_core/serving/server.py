"""`run_server`: from two configurations to a served model, and back down in order.

    bind the port -> spawn the engine process -> import the web stack, find the model -> order -> tokenizer -> ready

The engine process imports while this one does. From the first moment the port answers, with 503 until the engine is
ready. SIGTERM and SIGINT stop taking requests, let the running ones finish for a while, and end the engine.
"""

from __future__ import annotations

import logging
import socket
import sys
import time

from tenon_core.config import EngineConfig
from tenon_platforms.errors import ConfigError

from .config import ServerConfig

LOG = logging.getLogger(__name__)
BACKLOG = 2048


def run_server(engine_config: EngineConfig, server_config: ServerConfig) -> int:
    """Serve until told to stop; returns the exit code. Raises `TenonError` where the start fails or the engine dies."""
    began = time.monotonic()
    server_config.check()
    if not server_config.is_loopback and not server_config.api_key:
        LOG.warning("%s is open to everybody who reaches it (--insecure-no-key)", server_config.host)
    is_shared = server_config.api_server_count > 1
    listener = bind(server_config.host, server_config.port, listens=not is_shared)
    if is_shared:  # free until now, or there was an error; held from now on, and listened at by the API processes
        port = listener.getsockname()[1]
        listener.close()
        listener = bind(server_config.host, port, is_shared=True, listens=False)
    scraped = None
    try:
        if server_config.metrics_port is not None:
            scraped = bind(server_config.metrics_host, server_config.metrics_port, flag="metrics-port")
        from tenon_core.client.engine_process import EngineProcess

        process = EngineProcess()
        try:
            from .lifetime import serve

            if is_shared:
                from .api_processes import serve_shared as serve
        except BaseException:
            process.kill()
            process.close(patience=0)
            raise
        return serve(engine_config, server_config, listener, process, began=began, metrics_listener=scraped)
    finally:
        listener.close()
        if scraped is not None:
            scraped.close()


def bind(host: str, port: int, *, flag: str = "port", is_shared: bool = False, listens: bool = True) -> socket.socket:
    """A listening socket. flag: the option that says the port. is_shared: with other processes of ours.

    Raises `ConfigError` where the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        if listens:
            listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            remedy=f"stop the other server, or pass another --{flag} (0: any free one) or address",
        ) from None
    return listener
