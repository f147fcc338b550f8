"""`tenon bench host`: what a steady decode step costs on the host, apart from any device.

The null platform runs a step as one empty launch, so what is timed is scheduling, packing, launching and routing. The
minimum of several runs is told, beside a calibration loop of fixed Python and numpy work that says how fast this core
is today. The split is measured in runs of its own, so that its clock readings are not in `step_ms`.
"""

from __future__ import annotations

from typing import Any

import click

from tenon_core.cli.output import print_json, print_table
from tenon_platforms.errors import ConfigError

DEFAULT_REQUESTS = (256, 1024)


@click.command()
@click.option(
    "--requests",
    type=click.IntRange(1, 16384),
    multiple=True,
    default=DEFAULT_REQUESTS,
    show_default=True,
    help="Running requests; may be repeated, one case each.",
)
@click.option("--steps", type=click.IntRange(1, 10000), default=100, show_default=True, help="Steps of a run.")
@click.option("--runs", type=click.IntRange(1, 100), default=8, show_default=True, help="Runs; the fastest is told.")
@click.option("--warmup", type=click.IntRange(1, 1000), default=60, show_default=True, help="Steps before the first.")
@click.option("--prompt-len", type=click.IntRange(1, 4096), default=100, show_default=True, help="Tokens of a prompt.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object a case.")
def host(requests: tuple[int, ...], steps: int, runs: int, warmup: int, prompt_len: int, as_json: bool) -> None:
    """Time the host's work in a steady decode step on the null platform."""
    if len(set(requests)) < len(requests):
        raise ConfigError(f"--requests names a case twice: {', '.join(map(str, requests))}")
    from .host_case import HostCase

    cases = [
        HostCase(requests=count, steps=steps, runs=runs, warmup=warmup, prompt_len=prompt_len).measure()
        for count in requests
    ]
    if as_json:
        print_json([case.to_dict() for case in cases])
        return
    print_table(
        f"host time of a decode step in ms: minimum of {runs} runs of {steps} steps",
        ("requests", "step", "median", "schedule", "prepare", "launch", "post", "calibration"),
        [_row(case.to_dict()) for case in cases],
        right=("requests", "step", "median", "schedule", "prepare", "launch", "post", "calibration"),
    )


def _row(case: dict[str, Any]) -> list[str]:
    names = ("step_ms", "step_ms_median", "schedule_ms", "prepare_ms", "launch_ms", "post_ms", "calibration_ms")
    return [str(case["requests"]), *(f"{case[name]:.4f}" for name in names)]
