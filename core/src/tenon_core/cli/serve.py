"""`tenon serve MODEL`: the HTTP server. Its flags are the engine's and the server's configuration, nothing else."""

from __future__ import annotations

from typing import Any

import click

from tenon_core.serving.config import ServerConfig

from .flags import ENGINE_SECTIONS, SectionedCommand, config_flags, engine_config, take
from .logs import start_logging


@click.command(cls=SectionedCommand)
@config_flags(*ENGINE_SECTIONS, ServerConfig)
def serve(**values: Any) -> int:
    """Serve MODEL over HTTP: a folder, a .gguf file, a Hugging Face id, or pkg:PACKAGE."""
    engine = engine_config(values)
    server = ServerConfig(**take(ServerConfig, values))
    start_logging("info")
    from tenon_core.serving.server import run_server

    return run_server(engine, server)
