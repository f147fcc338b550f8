"""`tenon plugins`: what is installed. Platforms with their states, and entries of the engine's own groups.

Imports none of them.
"""

from __future__ import annotations

from typing import Any

import click

from tenon_core.hookspecs import GROUPS, registrations
from tenon_platforms.errors import TenonError

from .output import print_json, print_table
from .platform_check import look, problem_of

UNHEALTHY = 3


@click.command()
@click.option("--platform", default=None, help="Judge states as if this platform were asked for.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plugins(platform: str | None, as_json: bool) -> int:
    """List platforms, schedulers, block allocators and model families."""
    report = listing(platform)
    if as_json:
        print_json(report)
    else:
        _print(report)
    return UNHEALTHY if report["problems"] else 0


def listing(platform: str | None) -> dict[str, Any]:
    """The listing as plain data. problems: what is ambiguous or broken, with remedies."""
    seen = look(platform)
    problems = [] if seen.problem is None else [seen.problem]
    groups: dict[str, list[dict[str, str]]] = {}
    for group in GROUPS:
        try:
            entries = registrations(group)
        except TenonError as error:
            problems.append(problem_of(error))
            continue
        groups[group] = [
            {"name": item.name, "target": item.target, "distribution": item.distribution}
            for _, item in sorted(entries.items())
        ]
    return {"platforms": seen.plugins, "groups": groups, "warnings": seen.warnings, "problems": problems}


def _print(report: dict[str, Any]) -> None:
    print_table(
        "platforms",
        ("name", "distribution", "version", "contract", "state", "reason"),
        [
            [item[key] for key in ("name", "distribution", "version", "contract", "state", "reason")]
            for item in report["platforms"]
        ],
    )
    for group, entries in report["groups"].items():
        click.echo()
        rows = [(item["name"], item["distribution"], item["target"]) for item in entries]
        print_table(group, ("name", "distribution", "object"), rows)
    for warning in report["warnings"]:
        click.echo(f"\nwarning: {warning}")
    for problem in report["problems"]:
        click.echo(f"\nproblem: {problem['message']}")
        if problem["remedy"]:
            click.echo(f"remedy: {problem['remedy']}")
