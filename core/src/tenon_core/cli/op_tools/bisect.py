"""`tenon ops bisect MODEL`: which op, and which spec of it, is behind greedy tokens that are not the reference's."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from ..flags import ENGINE_SECTIONS, SectionedCommand, config_flags, engine_config
from ..logs import start_logging
from ..output import print_json, print_table

if TYPE_CHECKING:
    from .bisecting import Mismatch, Verdict

CAUSES = {
    "none": "the tokens are the reference's: there is nothing to find",
    "execution": "with --enforce-eager the tokens are right: the fault is in how steps are captured or replayed",
    "elsewhere": "no kernel is the cause, all of them on the reference give the same fault: look at the device (copies,"
    " events) and at execution (shapes, padding)",
}


@click.command(cls=SectionedCommand)
@click.option(
    "--prompt", "-p", "prompts", multiple=True, help="A prompt to run; may be repeated; default: three texts."
)
@click.option("--max-tokens", type=click.IntRange(1), default=16, show_default=True, help="Tokens after each prompt.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@config_flags(*ENGINE_SECTIONS)
def bisect(prompts: tuple[str, ...], max_tokens: int, as_json: bool, **values: Any) -> int:
    """Find the op behind wrong tokens of MODEL: swap ops to the reference, one at a time, until they are right.

    Ends with 1 where a fault was found. Compare in float32 (--dtype float32): in a narrow type near ties differ too.
    """
    config = engine_config(values)
    start_logging("error")
    from .bisecting import Bisection
    from .runs import encode

    search = Bisection(
        config=config,
        prompts=encode(config, prompts),
        max_tokens=max_tokens,
        on_try=lambda what: click.echo(f"on the reference: {what} ...", err=True),
    )
    verdict = search.search()
    if as_json:
        print_json(dataclasses.asdict(verdict))
    else:
        _print(verdict)
    return 0 if verdict.cause == "none" else 1


def _print(verdict: Verdict) -> None:
    if verdict.mismatch is not None:
        click.echo(_mismatch_text(verdict, verdict.mismatch))
        print_table("tried", ("on the reference", "tokens"), verdict.tried)
    if verdict.near_ties:
        click.echo(f"{verdict.near_ties} prompts part from the reference at a near tie, which rounding may decide")
    if verdict.cause != "ops":
        click.echo(CAUSES[verdict.cause])
        return
    many = len(verdict.culprits) > 1
    click.echo("these kernels are wrong together:" if many else "this kernel is wrong:")
    for one in verdict.culprits:
        click.echo(f"  {one.op}: kernel {one.kernel}\n  {one.spec}")
    click.echo(f"\ntenon ops record MODEL --op {verdict.culprits[0].op} writes its cases; the kit replays them")


def _mismatch_text(verdict: Verdict, found: Mismatch) -> str:
    return (
        f"platform {verdict.platform} in {verdict.dtype}: token {found.place} of prompt {found.prompt} is"
        f" {found.found}, the reference says {found.expected}, whose log-probability leads by {found.lead:.3g}"
    )
