"""Progress on the terminal: one line while something long runs, nothing where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(title: str, *, total: int, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Yields `advance(count)`. Silent where stderr is no terminal, where asked to be, or with nothing to count."""
    if quiet or total <= 0 or sys.stderr is None or not sys.stderr.isatty():  # None: a daemon closed it
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)
