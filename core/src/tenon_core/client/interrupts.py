"""Ctrl-C between the steps of an engine in this process, never in the midst of one.

Python raises `KeyboardInterrupt` at any line. In a step, between scheduling and launching, that would leave rows that
wait forever for tokens nobody computes. So the signal is noted, and raised where the caller says; who asks twice
does not want to wait, and is obeyed at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_held() -> Iterator[Callable[[], None]]:
    """Yields what raises `KeyboardInterrupt` if one was asked for since the start; the end raises it at the latest.

    Where Python would not raise one here (another thread, a handler of somebody else's) nothing changes.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: None
        return
    was_asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal was_asked
        if was_asked:
            signal.default_int_handler(number, frame)
        was_asked = True

    def let_through() -> None:
        nonlocal was_asked
        if was_asked:
            was_asked = False
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield let_through
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    let_through()
