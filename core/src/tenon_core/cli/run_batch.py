"""`tenon run-batch -i IN.jsonl -o OUT.jsonl -m MODEL`: OpenAI's batch files, offline. May be stopped and run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tenon_core.serving.config import ServerConfig

from .flags import ENGINE_SECTIONS, SectionedCommand, config_flags, engine_config
from .logs import start_logging


@click.command(cls=SectionedCommand)
@click.option(
    "-i", "--input-file", required=True, type=click.Path(path_type=Path), help="File of requests, one a line."
)
@click.option("-o", "--output-file", required=True, type=click.Path(path_type=Path), help="File for the answers.")
@click.option("-m", "short_model", default=None, metavar="MODEL", help="The same as --model.")
@click.option("--served-model-name", multiple=True, help="Name of the model in the requests; may be repeated.")
@click.option("--chat-template", default=None, help="A file with a chat template, in place of the model's own.")
@click.option("--tool-call-parser", default="auto", show_default=True, help="How the model writes tool calls.")
@click.option("--reasoning-parser", default="auto", show_default=True, help="How the model marks reasoning.")
@config_flags(*ENGINE_SECTIONS)
def run_batch(
    input_file: Path,
    output_file: Path,
    short_model: str | None,
    served_model_name: tuple[str, ...],
    chat_template: str | None,
    tool_call_parser: str,
    reasoning_parser: str,
    **values: Any,
) -> int:
    """Answer a batch file with MODEL. What the output holds already is not asked again."""
    values["model"] = values["model"] or short_model or ""
    engine = engine_config(values)
    server = ServerConfig(
        served_model_name=served_model_name,
        chat_template=chat_template,
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
        disable_access_log=True,
    )
    start_logging("info")
    from tenon_core.serving.batch import run_batch as run

    code, tally = run(engine, server, input_file, output_file)
    click.echo(f"{output_file}: {tally.text()}", err=True)
    return code
