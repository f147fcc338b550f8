"""Who uses the native threads of this process: engines share them, and the last one to close gives them back."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from . import native


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wish:
    """What an open device asked for: so many threads, bound to these cores. Two that are equal are two."""

    threads: int = 1
    cores: tuple[int, ...] = ()


NOBODY = Wish()


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
        if native.num_threads() != wish.threads or self._cores != wish.cores:
            native.set_threads(wish.threads, wish.cores)
            self._cores = wish.cores


USERS = ThreadUsers()
