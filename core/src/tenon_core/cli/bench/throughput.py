"""`tenon bench throughput MODEL`: all requests at once into an engine in this process, tokens a second out.

Through `LLM`, so with detokenizing; with `--engine-only` tokens in, tokens out, and no tokenizer is needed for random
prompts. What HTTP and templates cost is `bench serve`'s to tell.
"""

from __future__ import annotations

from typing import Any

import click

from tenon_core.cli.flags import ENGINE_SECTIONS, SectionedCommand, config_flags, engine_config
from tenon_core.cli.logs import start_logging
from tenon_core.cli.output import print_json, print_pairs

from .distribution import describe, parse_percentiles
from .options import random_ids, with_ignore_eos, with_json, with_percentiles, workload_of, workload_options


@click.command(cls=SectionedCommand)
@workload_options
@click.option("--warmups", type=click.IntRange(0), default=1, show_default=True, help="Untimed runs of a few requests.")
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="Of the requests.")
@with_ignore_eos
@click.option("--engine-only", is_flag=True, help="Tokens in, tokens out: no tokenizer, no detokenizing.")
@with_percentiles
@with_json
@config_flags(*ENGINE_SECTIONS)
def throughput(
    warmups: int,
    temperature: float,
    ignore_eos: bool,
    engine_only: bool,
    percentiles: str,
    as_json: bool,
    **values: Any,
) -> None:
    """Run all requests at once, offline, and tell tokens a second."""
    shares = parse_percentiles(percentiles)
    workload = workload_of(values)
    config = engine_config(values)
    start_logging("warning")
    from .offline import OfflineEngine

    offline = OfflineEngine.start(config)
    try:
        asks = offline.tokenized(random_ids(workload, offline.engine.facts.vocab_size).asks())
        run = offline.run if engine_only else offline.run_llm
        for _ in range(warmups):
            run(asks[: max(2, len(asks) // 16)], temperature=temperature, ignore_eos=ignore_eos)
        offline.engine.reset_prefix_cache()
        times = run(asks, temperature=temperature, ignore_eos=ignore_eos)
        facts = offline.describe()
    finally:
        offline.shutdown()
    num_prompt, num_output = sum(len(ask.prompt) for ask in asks), int(times.num_output.sum())
    report = {
        **facts,
        "num_requests": len(asks),
        "elapsed_time": times.seconds,
        "total_input_tokens": num_prompt,
        "total_output_tokens": num_output,
        "requests_per_second": len(asks) / times.seconds,
        "output_tokens_per_second": num_output / times.seconds,
        "tokens_per_second": (num_prompt + num_output) / times.seconds,
        **describe("ttft_ms", times.first.tolist(), shares),
        **describe("tpot_ms", times.per_token, shares),
        **describe("itl_ms", times.gaps, shares),
    }
    if as_json:
        print_json(report)
        return
    print_pairs(
        (
            *((name.replace("_", " "), value) for name, value in facts.items()),
            ("requests", f"{len(asks)} in {times.seconds:.2f} s"),
            ("tokens", f"{num_prompt} in, {num_output} out"),
            ("requests a second", f"{report['requests_per_second']:.2f}"),
            ("output tokens a second", f"{report['output_tokens_per_second']:.1f}"),
            ("all tokens a second", f"{report['tokens_per_second']:.1f}"),
        )
    )
