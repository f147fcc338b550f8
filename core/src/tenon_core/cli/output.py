"""How commands print: tables for people, JSON for programs, both on standard output. Logs go to standard error."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click


def print_json(data: Any) -> None:
    """One JSON document, indented."""
    click.echo(json.dumps(data, indent=2, default=str))


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()
) -> None:
    """A table; `right` names the columns that align right. Long cells fold, nothing is cut."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width
        console = Console(width=200)
    console.print(Text(title, style="bold"))
    console.print(table)


def print_pairs(pairs: Iterable[tuple[str, Any]]) -> None:
    """Aligned `name  value` lines."""
    listed = [(name, str(value)) for name, value in pairs]
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        click.echo(f"{name.ljust(width)}  {value}")


def human_bytes(count: float) -> str:
    """Bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def human_count(count: float) -> str:
    """A count with a decimal unit."""
    for unit in ("", " K", " M", " B"):
        if abs(count) < 1000:
            return f"{count:.0f}" if not unit else f"{count:.1f}{unit}"
        count /= 1000
    return f"{count:.1f} T"
