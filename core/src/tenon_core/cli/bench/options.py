"""Flags that the benchmarks share: what is asked, and how it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from .distribution import DEFAULT_PERCENTILES
from .workload import ID_RANGE, Workload

F = TypeVar("F", bound=Callable[..., Any])

with_seed = click.option("--bench-seed", type=int, default=0, show_default=True, help="Of prompts and arrival times.")
with_percentiles = click.option("--percentiles", default=DEFAULT_PERCENTILES, show_default=True, help="Which to tell.")
with_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
with_ignore_eos = click.option(
    "--ignore-eos/--no-ignore-eos", default=True, show_default=True, help="Generate to the full length."
)
WORKLOAD = (
    click.option(
        "--dataset-path",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        default=None,
        help="Prompts from a file: .jsonl, .json, .txt, or a .csv trace; default: random ones.",
    ),
    click.option("--num-prompts", type=click.IntRange(1), default=32, show_default=True, help="Requests."),
    click.option(
        "--input-len",
        "--random-input-len",
        type=click.IntRange(1),
        default=128,
        show_default=True,
        help="Prompt tokens.",
    ),
    click.option(
        "--output-len",
        "--random-output-len",
        type=click.IntRange(1),
        default=128,
        show_default=True,
        help="Output tokens of a request.",
    ),
    click.option(
        "--random-range-ratio",
        type=click.FloatRange(0, 1),
        default=0.0,
        show_default=True,
        help="Random lengths vary by this share, both ways.",
    ),
    with_seed,
)


def workload_options(function: F) -> F:
    """Decorator: the flags `workload_of` reads."""
    for option in reversed(WORKLOAD):
        function = option(function)
    return function


def workload_of(values: dict[str, Any], *, as_text: bool = False, id_range: tuple[int, int] = ID_RANGE) -> Workload:
    """The workload the flags describe."""
    return Workload(
        num_prompts=values["num_prompts"],
        input_len=values["input_len"],
        output_len=values["output_len"],
        spread=values["random_range_ratio"],
        seed=values["bench_seed"],
        dataset=values["dataset_path"],
        as_text=as_text,
        id_range=id_range,
    )


def random_ids(workload: Workload, vocab_size: int) -> Workload:
    """The same with random ids that lie within a vocabulary."""
    low, high = workload.id_range[0], min(workload.id_range[1], vocab_size)
    return replace(workload, id_range=(low if low < high // 2 else 0, high))
