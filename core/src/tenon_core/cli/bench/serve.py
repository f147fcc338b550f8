"""`tenon bench serve`: load on a running server that speaks OpenAI's API, ours or anyone's.

The report's names are the ones this field's benchmarks use: TTFT (to first token), TPOT (a request's mean time a
token after it), ITL (between tokens), E2EL (to the end), in milliseconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tenon_core.cli.output import print_json, print_pairs, print_table
from tenon_platforms.errors import DeviceError

from .distribution import describe, parse_percentiles
from .options import random_ids, with_ignore_eos, with_json, with_percentiles, workload_of, workload_options

METRICS = ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms")


@click.command()
@click.option("--base-url", default="http://127.0.0.1:8000", show_default=True, help="The server.")
@click.option(
    "--endpoint",
    type=click.Choice(("/v1/completions", "/v1/chat/completions")),
    default="/v1/completions",
    show_default=True,
    help="Which route to load.",
)
@click.option("--model", default=None, help="Model name in the requests; default: the first that the server lists.")
@click.option("--api-key", default=None, envvar="TENON_API_KEY", help="Key (or TENON_API_KEY in the environment).")
@click.option("--request-rate", type=float, default=float("inf"), show_default=True, help="Requests a second.")
@click.option(
    "--burstiness", type=click.FloatRange(0.01), default=1.0, show_default=True, help="1: Poisson; more: steadier."
)
@click.option("--max-concurrency", type=click.IntRange(0), default=0, help="Most requests under way; 0: no limit.")
@click.option("--warmups", type=click.IntRange(0), default=1, show_default=True, help="Requests sent before, not told.")
@with_ignore_eos
@click.option("--temperature", type=float, default=0.0, show_default=True, help="Of the requests.")
@click.option("--random-text", is_flag=True, help="Random prompts as words, for servers that take no token ids.")
@click.option(
    "--timeout", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds a request may take."
)
@click.option(
    "--vocab-size", type=click.IntRange(2), default=1000, show_default=True, help="Random token ids lie below this."
)
@with_percentiles
@click.option("--save-result", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON here too.")
@with_json
@workload_options
def serve(**values: Any) -> int:
    """Load a running OpenAI server and report throughput and latencies."""
    import asyncio
    import json

    from .load import Pace, Target, first_model, run_load
    from .workload import Ask

    percentiles = parse_percentiles(values["percentiles"])
    rate = values["request_rate"]
    if rate <= 0:
        raise click.BadParameter(f"{rate} is not above 0", param_hint="--request-rate")
    workload = workload_of(values, as_text=values["random_text"] or "chat" in values["endpoint"])
    asks = random_ids(workload, values["vocab_size"]).asks()
    base_url = values["base_url"].rstrip("/").removesuffix("/v1")
    model = values["model"] or asyncio.run(first_model(base_url, values["api_key"]))
    target = Target(
        base_url=base_url,
        endpoint=values["endpoint"],
        model=model,
        api_key=values["api_key"],
        ignore_eos=values["ignore_eos"],
        temperature=values["temperature"],
        timeout_s=values["timeout"],
    )
    pace = Pace(
        rate=rate, burstiness=values["burstiness"], concurrency=values["max_concurrency"], seed=values["bench_seed"]
    )
    if values["warmups"]:
        warm = [Ask(prompt=ask.prompt, output_len=ask.output_len) for ask in asks[: values["warmups"]]]
        first = asyncio.run(run_load(target, warm, Pace(rate=float("inf"))))[0][0]
        if first.error is not None:
            raise DeviceError(
                f"the first request to {base_url} failed: {first.error}",
                remedy="where the server refuses the random token ids, pass --vocab-size or --random-text",
            )
    answers, seconds = asyncio.run(run_load(target, asks, pace))
    report = report_of(answers, seconds, percentiles)
    report |= {"model": model, "endpoint": values["endpoint"], "num_prompts": len(asks), "request_rate": str(rate)}
    report |= {"max_concurrency": values["max_concurrency"] or None, "seed": values["bench_seed"]}
    if values["save_result"] is not None:
        values["save_result"].write_text(json.dumps(report, indent=2), encoding="utf-8")
    if values["as_json"]:
        print_json(report)
    else:
        _print(report, percentiles)
    return 0 if report["completed"] else 4


def report_of(answers: list[Any], seconds: float, percentiles: tuple[float, ...]) -> dict[str, Any]:
    """The figures of a run, of the requests that went well."""
    good = [answer for answer in answers if answer.error is None]
    errors: dict[str, int] = {}
    for answer in answers:
        if answer.error is not None:
            errors[answer.error] = errors.get(answer.error, 0) + 1
    num_prompt, num_output = sum(a.num_prompt for a in good), sum(a.num_output for a in good)
    per_token = [a.seconds_per_token for a in good if a.seconds_per_token is not None]
    return {
        "duration": seconds,
        "completed": len(good),
        "failed": len(answers) - len(good),
        "total_input_tokens": num_prompt,
        "total_output_tokens": num_output,
        "request_throughput": len(good) / seconds,
        "output_throughput": num_output / seconds,
        "total_token_throughput": (num_prompt + num_output) / seconds,
        **describe("ttft_ms", [a.first for a in good], percentiles),
        **describe("tpot_ms", per_token, percentiles),
        **describe("itl_ms", [gap for a in good for gap in a.gaps], percentiles),
        **describe("e2el_ms", [a.ended - a.started for a in good], percentiles),
        "errors": errors,
    }


def _print(report: dict[str, Any], percentiles: tuple[float, ...]) -> None:
    print_pairs(
        (
            ("requests", f"{report['completed']} done, {report['failed']} failed, {report['duration']:.2f} s"),
            ("input tokens", report["total_input_tokens"]),
            ("output tokens", report["total_output_tokens"]),
            ("requests a second", f"{report['request_throughput']:.2f}"),
            ("output tokens a second", f"{report['output_throughput']:.1f}"),
            ("all tokens a second", f"{report['total_token_throughput']:.1f}"),
        )
    )
    click.echo()
    columns = ["mean", "median", "std", *(f"p{share:g}" for share in percentiles)]
    rows = [
        [metric.removesuffix("_ms").upper(), *(_number(report[f"{column}_{metric}"]) for column in columns)]
        for metric in METRICS
    ]
    print_table("milliseconds", ["", *columns], rows, right=columns)
    for error, count in report["errors"].items():
        click.echo(f"{count} x {error}", err=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
