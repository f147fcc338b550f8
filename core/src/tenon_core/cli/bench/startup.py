"""`tenon bench startup MODEL`: from process start to the first token, by phase, each run in a process of its own.

Offline by default: a child imports, starts an engine and generates one token. With `--server` the child is
`tenon serve`, and the first token is the one an HTTP client sees.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from dataclasses import asdict
from typing import Any

import click

from tenon_core.children import module_command
from tenon_core.cli.flags import ENGINE_SECTIONS, SectionedCommand, config_flags, engine_config
from tenon_core.cli.output import print_json, print_table
from tenon_core.config import EngineConfig
from tenon_platforms.errors import DeviceError, TenonError

from .options import with_json
from .served_start import time_server

LAST_LINES = 15


@click.command(cls=SectionedCommand)
@click.option("--runs", type=click.IntRange(1), default=3, show_default=True, help="Processes started, one by one.")
@click.option("--server", is_flag=True, help="Start `tenon serve` and ask over HTTP.")
@click.option("--timeout", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds a start may take.")
@with_json
@config_flags(*ENGINE_SECTIONS)
def startup(runs: int, server: bool, timeout: float, as_json: bool, **values: Any) -> None:
    """Time a start: process, imports, phases, first token."""
    config = engine_config(values)
    measure = time_server if server else time_engine
    measured = [measure(config, timeout) for _ in range(runs)]
    report = {
        "model": config.model.model,
        "mode": "server" if server else "engine",
        "runs": measured,
        "total_s": min(run["total"] for run in measured),
        "median_total_s": statistics.median(run["total"] for run in measured),
    }
    if as_json:
        print_json(report)
        return
    phases = list(measured[0])
    rows = [
        [
            phase,
            f"{min(run[phase] for run in measured):.3f}",
            f"{statistics.median(run[phase] for run in measured):.3f}",
        ]
        for phase in phases
    ]
    print_table(f"seconds to the first token, {runs} runs", ("phase", "min", "median"), rows, right=("min", "median"))


def time_engine(config: EngineConfig, timeout: float) -> dict[str, float]:
    """Seconds by phase of one child that starts an engine. Raises `DeviceError` where it fails."""
    order = json.dumps(
        {section: asdict(getattr(config, section)) for section in ("model", "cache", "scheduler", "platform")}
    )
    started = time.monotonic()
    try:
        child = subprocess.run(
            module_command("tenon_core.cli.bench.startup_child", repr(started)),
            input=order,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"the engine did not start within {timeout:g} s", remedy="pass a longer --timeout") from error
    if child.returncode:
        lines = child.stderr.strip().splitlines()[-LAST_LINES:]
        raise failure(child.stdout, "\n".join(lines), child.returncode)
    result: dict[str, float] = json.loads(child.stdout)
    return result


def failure(answer: str, told: str, code: int) -> TenonError:
    """The child's own error, or what it left on standard error."""
    from tenon_platforms import errors

    try:
        plain = json.loads(answer)
        kind = getattr(errors, plain["kind"])
        error: TenonError = kind(plain["message"], remedy=plain["remedy"])
        return error
    except (ValueError, KeyError, TypeError, AttributeError):
        return DeviceError(f"the engine's process ended with code {code}:\n{told}")
