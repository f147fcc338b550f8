"""`tenon bench latency MODEL`: one batch again and again in an engine in this process; how long a batch takes."""

from __future__ import annotations

from typing import Any

import click

from tenon_core.cli.flags import ENGINE_SECTIONS, SectionedCommand, config_flags, engine_config
from tenon_core.cli.logs import start_logging
from tenon_core.cli.output import print_json, print_table

from .distribution import describe, parse_percentiles
from .options import random_ids, with_json, with_percentiles, with_seed
from .workload import Workload

METRICS = ("latency_ms", "ttft_ms", "tpot_ms")


@click.command(cls=SectionedCommand)
@click.option("--batch-size", type=click.IntRange(1), default=1, show_default=True, help="Requests of a batch.")
@click.option("--input-len", type=click.IntRange(1), default=32, show_default=True, help="Prompt tokens.")
@click.option("--output-len", type=click.IntRange(1), default=128, show_default=True, help="Output tokens.")
@click.option("--num-iters-warmup", type=click.IntRange(0), default=2, show_default=True, help="Untimed batches.")
@click.option("--num-iters", type=click.IntRange(1), default=10, show_default=True, help="Timed batches.")
@with_seed
@with_percentiles
@with_json
@config_flags(*ENGINE_SECTIONS)
def latency(
    batch_size: int,
    input_len: int,
    output_len: int,
    num_iters_warmup: int,
    num_iters: int,
    bench_seed: int,
    percentiles: str,
    as_json: bool,
    **values: Any,
) -> None:
    """Run one batch again and again, offline, and tell how long it takes."""
    shares = parse_percentiles(percentiles)
    config = engine_config(values)
    start_logging("warning")
    from .offline import OfflineEngine

    offline = OfflineEngine.start(config)
    try:
        workload = Workload(num_prompts=batch_size, input_len=input_len, output_len=output_len, seed=bench_seed)
        asks = random_ids(workload, offline.engine.facts.vocab_size).asks()
        runs = []
        for index in range(num_iters_warmup + num_iters):
            offline.engine.reset_prefix_cache()  # every batch computes its prompts
            times = offline.run(asks)
            if index >= num_iters_warmup:
                runs.append(times)
        facts = offline.describe()
    finally:
        offline.shutdown()
    report = {
        **facts,
        "batch_size": batch_size,
        "input_len": input_len,
        "output_len": output_len,
        "num_iters": num_iters,
        **describe("latency_ms", [run.seconds for run in runs], shares),
        **describe("ttft_ms", [value for run in runs for value in run.first.tolist()], shares),
        **describe("tpot_ms", [value for run in runs for value in run.per_token], shares),
        "latencies_ms": [run.seconds * 1e3 for run in runs],
    }
    if as_json:
        print_json(report)
        return
    columns = ["mean", "median", "std", *(f"p{share:g}" for share in shares)]
    rows = [
        [name.removesuffix("_ms"), *("-" if (v := report[f"{c}_{name}"]) is None else f"{v:.2f}" for c in columns)]
        for name in METRICS
    ]
    title = f"milliseconds of a batch of {batch_size} ({input_len} in, {output_len} out), {facts['platform']}"
    print_table(title, ["", *columns], rows, right=columns)
