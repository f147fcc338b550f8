"""`tenon`: the command tree, and the one place where errors become messages and exit codes.

Commands are named in a table and imported when run, so `tenon --help` costs little. Exit codes: 0 done, 1 a bug, 2 the
request is wrong (flags, files, model), 3 plugin or hardware, 4 not enough of something or the device failed, 130
interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence

import click

from tenon_platforms.errors import CapacityError, ConfigError, DeviceError, PluginError, RequestError, TenonError

from .lazy import LazyGroup

COMMANDS = {
    "serve": ("tenon_core.cli.serve:serve", "Serve a model over HTTP, as OpenAI's API does."),
    "chat": ("tenon_core.cli.chat:chat", "Talk to a model in the terminal."),
    "run-batch": ("tenon_core.cli.run_batch:run_batch", "Answer a file of requests, in OpenAI's batch format."),
    "bench": ("tenon_core.cli.bench.group:bench", "Measure: serve, throughput, latency, startup, host."),
    "doctor": ("tenon_core.cli.doctor:doctor", "Check this machine: hardware, plugins, versions, the platform."),
    "ops": ("tenon_core.cli.ops:ops", "Show which kernel serves every op of a model, and why."),
    "inspect": ("tenon_core.cli.inspect:inspect", "Show what a model is made of; no weights are read."),
    "plugins": ("tenon_core.cli.plugins:plugins", "List platforms, schedulers, allocators and model families."),
    "version": ("tenon_core.cli.version:version", "Print versions."),
}
DEBUG_ENV = "TENON_DEBUG"
EXIT_CODES: tuple[tuple[type[TenonError], int], ...] = (
    (ConfigError, 2),
    (RequestError, 2),
    (PluginError, 3),
    (CapacityError, 4),
    (DeviceError, 4),
)
INTERRUPTED = 130
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


@click.group(cls=LazyGroup, commands_table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help=f"Show tracebacks of errors (or {DEBUG_ENV}=1 in the environment).")
@click.option(
    "--log-level",
    type=click.Choice(("debug", "info", "warning", "error")),
    default=None,
    help="Which log lines go to standard error; default: the command's own.",
    envvar="TENON_LOG_LEVEL",
)
@click.option(
    "--log-format",
    type=click.Choice(("text", "json")),
    default="text",
    help="Log lines for people, or one JSON object each for programs.",
    envvar="TENON_LOG_FORMAT",
)
@click.pass_context
def cli(context: click.Context, debug: bool, log_level: str | None, log_format: str) -> None:
    """Tenon: an LLM inference and serving engine whose core knows no device."""
    context.obj = {"debug": debug or wants_debug(), "log_level": log_level, "log_format": log_format}


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: run, then exit with the code the outcome calls for."""
    open_standard_streams()
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def open_standard_streams() -> None:
    """Streams that were closed by whoever started us become the null device.

    Else the next file or socket opened gets the number of one, and what is written to it, by us or a child, goes there.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - descriptors, for the life of the process
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code and prints errors on standard error."""
    debug = wants_debug() or "--debug" in _before_command(arguments)
    try:
        result = cli.main(args=list(arguments), prog_name="tenon", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 0 if not arguments else 2
    except click.ClickException as error:
        click.echo(usage_text(error), err=True)
        return 2
    except click.Abort as error:
        return INTERRUPTED if isinstance(error.__cause__, KeyboardInterrupt) else 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except TenonError as error:
        if debug:
            traceback.print_exception(type(error), error, error.__traceback__)
        click.echo(error_text(error), err=True)
        return exit_code(error)
    except BrokenPipeError:  # `tenon ops | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the end's flush does not fail again
        click.echo(f"error: the output cannot be written: {error.strerror}\nremedy: free some space", err=True)
        return 4
    return result if isinstance(result, int) else 0


def error_text(error: TenonError) -> str:
    """What a person is told: `error: ...` and, where known, `remedy: ...`."""
    remedy = f"\nremedy: {error.remedy}" if error.remedy else ""
    return f"error: {error.message}{remedy}"


def usage_text(error: click.ClickException) -> str:
    """A wrong command line, in the same form, with where to read more."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    more = f"\nremedy: see {context.command_path} --help" if context is not None else ""
    return f"error: {error.format_message()}{more}"


def exit_code(error: TenonError) -> int:
    """The exit code of an error."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)


def wants_debug() -> bool:
    """Whether the environment asks for tracebacks. Raises nothing: an error path reads it."""
    return os.environ.get(DEBUG_ENV, "").strip().lower() in ("1", "true", "yes", "on")


def _before_command(arguments: Sequence[str]) -> list[str]:
    """The group's own flags: what stands before the command's name."""
    for place, argument in enumerate(arguments):
        if argument in COMMANDS:
            return list(arguments[:place])
    return list(arguments)


if __name__ == "__main__":
    main()
