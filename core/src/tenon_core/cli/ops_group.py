"""`tenon ops MODEL`, `tenon ops record MODEL`, `tenon ops bisect MODEL`: a command that has commands of its own.

The first word decides. A model whose folder is called like a command is written as a path: `./record`.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from .flags import SectionedCommand

COMMANDS = {
    "record": ("tenon_core.cli.op_tools.record:record", "Write the op cases of a real run to a file."),
    "bisect": ("tenon_core.cli.op_tools.bisect:bisect", "Find the op behind wrong tokens."),
}


class OpsGroup(SectionedCommand, click.Group):
    """Without one of its commands' names in front it is the command it decorates, flags after the model included."""

    allow_extra_args = False
    allow_interspersed_args = True

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(
            *args, **{**keywords, "no_args_is_help": False}
        )  # it says that no model is given, as others do

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] in COMMANDS:
            ctx.meta[__name__] = args
            return []
        return click.Command.parse_args(self, ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        words = ctx.meta.get(__name__)
        if words is None:
            return click.Command.invoke(self, ctx)
        command = self.get_command(ctx, words[0])
        assert command is not None
        name = f"{ctx.info_name} {words[0]}"  # as a child of this one, help would show this one's MODEL before it
        with command.make_context(name, list(words[1:]), parent=ctx.parent) as inner:
            return command.invoke(inner)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return click.Command.collect_usage_pieces(self, ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in COMMANDS.items()])
        SectionedCommand.format_options(self, ctx, formatter)
