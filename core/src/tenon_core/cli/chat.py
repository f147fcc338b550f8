"""`tenon chat MODEL`: a conversation in the terminal, the engine in this process, answers as they come.

Ctrl-C ends the answer, a second one the chat. `--prompt` asks one question and leaves. Standard output is for answers
alone; everything else goes to standard error.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from .flags import ENGINE_SECTIONS, SectionedCommand, config_flags, engine_config
from .logs import start_logging

if TYPE_CHECKING:
    from .talk import Talk

ONE_TALK = 4  # rows: a talk needs one
COMMANDS = "/reset begins anew, /system TEXT sets the system message, /exit or Ctrl-D leaves"


@click.command(cls=SectionedCommand)
@click.option("--prompt", "-p", default=None, help="Ask this, print the answer and leave; - reads standard input.")
@click.option("--system", default=None, help="The system message.")
@click.option("--chat-template", default=None, help="A file with a chat template, in place of the model's own.")
@click.option("--max-tokens", type=click.IntRange(1), default=None, help="Most tokens of an answer.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0: always the likeliest token.")
@click.option("--top-p", type=float, default=1.0, show_default=True, help="Nucleus sampling.")
@click.option("--top-k", type=int, default=0, show_default=True, help="Choose among the k likeliest; 0: all.")
@click.option("--stats", is_flag=True, help="After each answer, tell tokens and speed on standard error.")
@config_flags(*ENGINE_SECTIONS)
def chat(
    prompt: str | None,
    system: str | None,
    chat_template: str | None,
    max_tokens: int | None,
    temperature: float,
    top_p: float,
    top_k: int,
    stats: bool,
    **values: Any,
) -> int:
    """Talk to MODEL in the terminal."""
    from tenon_core.sampling.params import SamplingParams

    values["max_num_seqs"] = min(values["max_num_seqs"], ONE_TALK)
    config = engine_config(values)
    params = SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, max_tokens=max_tokens)
    start_logging("warning")
    from .talk import Talk

    if prompt is None and sys.stdin.isatty():
        click.echo(f"starting {config.model.model} ...", err=True)
    with Talk.start(config, params, system=system, template=chat_template) as talk:
        if prompt is not None or not sys.stdin.isatty():
            _answer(talk, sys.stdin.read() if prompt in (None, "-") else str(prompt), stats)
        else:
            _converse(talk, stats)
    return 0


def _converse(talk: Talk, stats: bool) -> None:
    click.echo(COMMANDS, err=True)
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            click.echo(err=True)
            return
        if not text:
            continue
        if text in ("/exit", "/quit"):
            return
        if text == "/reset":
            talk.reset()
        elif text.startswith("/system"):
            talk.reset(system=text.removeprefix("/system").strip() or None)
        elif text.startswith("/"):
            click.echo(COMMANDS, err=True)
        else:
            _answer_or_go_on(talk, text, stats)


def _answer_or_go_on(talk: Talk, text: str, stats: bool) -> None:
    """A question that cannot be answered, such as one too long, does not end the conversation."""
    from tenon_platforms.errors import RequestError

    from .main import error_text

    try:
        _answer(talk, text, stats)
    except RequestError as error:
        click.echo(error_text(error), err=True)
    except KeyboardInterrupt:
        click.echo(" (stopped)", err=True)


def _answer(talk: Talk, text: str, stats: bool) -> None:
    for piece in talk.ask(text):
        click.echo(piece, nl=False)
        sys.stdout.flush()
    click.echo()
    if stats:
        click.echo(talk.last_line(), err=True)
