"""`tenon version`: our version, the contract's, and what is installed beside."""

from __future__ import annotations

import click

from tenon_platforms.version import contract_version_text

from .output import print_json, print_pairs
from .versions import versions


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def version(as_json: bool) -> None:
    """Print versions."""
    found = {"contract": contract_version_text(), **versions()}
    if as_json:
        print_json(found)
    else:
        print_pairs(found.items())
