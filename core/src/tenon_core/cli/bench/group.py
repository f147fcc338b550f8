"""`tenon bench`: the table of its commands."""

from __future__ import annotations

import click

from tenon_core.cli.lazy import LazyGroup

COMMANDS = {
    "serve": ("tenon_core.cli.bench.serve:serve", "Load a running OpenAI server: throughput, TTFT, ITL, TPOT."),
    "throughput": ("tenon_core.cli.bench.throughput:throughput", "Offline: all requests at once, tokens a second."),
    "latency": ("tenon_core.cli.bench.latency:latency", "Offline: one batch again and again, seconds a batch."),
    "startup": ("tenon_core.cli.bench.startup:startup", "From process start to the first token, by phase."),
    "host": ("tenon_core.cli.bench.host:host", "The host's own cost of a decode step, no device, no model."),
}


@click.group(cls=LazyGroup, commands_table=COMMANDS)
def bench() -> None:
    """Measure this engine, or any server that speaks OpenAI's API."""
