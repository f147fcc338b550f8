"""`tenon ops MODEL`: which kernel serves every op of a model on this machine, which offers were refused, and why.

The model is built as at start-up, but of tensors without memory: shapes and schemes come from the configuration and
the tensors' index, and no weight is read.
"""

from __future__ import annotations

from typing import Any

import click

from .flags import ENGINE_SECTIONS, config_flags, engine_config
from .logs import start_logging
from .ops_group import OpsGroup
from .output import print_json, print_table


@click.command(cls=OpsGroup)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@config_flags(*ENGINE_SECTIONS)
def ops(as_json: bool, **values: Any) -> None:
    """Show which kernel serves every op of a model, and why."""
    config = engine_config(values)
    start_logging("error")
    from .dry_model import op_choices

    found = op_choices(config)
    if as_json:
        print_json(found)
        return
    print_table(
        f"ops of {found['model']} on platform {found['platform']}, {found['dtype']}",
        ("op", "kernel", "from", "uses", "spec", "refused"),
        [
            (item["op"], item["kernel"], item["source"], item["uses"], item["summary"], _refused(item["refused"]))
            for item in found["choices"]
        ],
        right=("uses",),
    )
    if found["reference_line"]:
        click.echo(f"\n{found['reference_line']}")


def _refused(refused: list[dict[str, str]]) -> str:
    return "; ".join(f"{item['offer']}: {item['reason']}" for item in refused) or "-"
