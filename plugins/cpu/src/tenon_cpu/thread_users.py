"""Who uses the native threads of this process: engines share them, and the last one to close gives them back."""

from __future__ import annotations

import threading

from . import native

Wish = tuple[int, tuple[int, ...]]  # threads, and the cores that they are bound to
NOBODY: Wish = (1, ())


class ThreadUsers:
    """Open devices and what they asked for, in the order of their opening: the latest one has its way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wishes: list[Wish] = []
        self._cores: tuple[int, ...] = ()

    def enter(self, wish: Wish) -> None:
        """One device more."""
        with self._lock:
            self._wishes.append(wish)
            self._fulfil(wish)

    def leave(self, wish: Wish) -> None:
        """One device less; the others have what the latest of them asked for."""
        with self._lock:
            self._wishes.remove(wish)
            self._fulfil(self._wishes[-1] if self._wishes else NOBODY)

    def _fulfil(self, wish: Wish) -> None:
        """Threads that are so already stay: an engine may be computing on them."""
        threads, cores = wish
        if native.num_threads() != threads or self._cores != cores:
            native.set_threads(threads, cores)
            self._cores = cores


USERS = ThreadUsers()
