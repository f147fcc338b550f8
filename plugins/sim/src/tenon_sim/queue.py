"""The device's queue: one worker thread that runs work in order, and events that tell when.

Work that fails does not stop the queue: the next event carries the error to the host, as asynchronous devices do. A
lost device stays lost. The library is told of work that is pending, because an operation that the host launches itself
comes after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import torch

from tenon_platforms.device import Event, Fault

from .faults import SimFaultError
from .native import Native

Work = Callable[[], None]
WAIT_SECONDS = 600.0  # a queue that is silent for longer hangs


class SimEvent(Event):
    """A point in the queue; it raises the error of the work between the event before it and itself, each time."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: BaseException | None = None

    def wait(self) -> None:
        if not self._done.wait(WAIT_SECONDS):
            raise TimeoutError(f"the simulated device has not reached an event for {WAIT_SECONDS:.0f} s")
        if self._error is not None:
            raise self._error

    def is_done(self) -> bool:
        return self._done.is_set()

    def finish(self, error: BaseException | None) -> None:
        """The queue has come to this point."""
        self._error = error
        self._done.set()


class WorkQueue:
    """Runs work on its own thread, in inference mode, in the order it was put."""

    def __init__(self, native: Native) -> None:
        self._native = native
        self._items: SimpleQueue[Work | SimEvent | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="sim-device", daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller is the queue's own thread."""
        return threading.current_thread() is self._thread

    def put(self, work: Work) -> None:
        """Queue work; it returns at once."""
        self._native.pending(1)
        self._items.put(work)

    def event(self) -> SimEvent:
        """The present end of the queue."""
        event = SimEvent()
        self._items.put(event)
        return event

    def stop(self) -> None:
        """Finish what is queued and end the thread."""
        if self._thread.is_alive():
            self._items.put(None)
            self._thread.join()

    def _loop(self) -> None:
        error: BaseException | None = None
        lost: BaseException | None = None
        self._native.set_worker(1)
        with torch.inference_mode():
            while (item := self._items.get()) is not None:
                if isinstance(item, SimEvent):
                    item.finish(lost or error)
                    error = None
                    continue
                try:
                    if lost is None:
                        item()
                except BaseException as raised:  # noqa: BLE001 - the host gets it from the next event
                    error = error or raised
                    if isinstance(raised, SimFaultError) and raised.fault is Fault.LOST:
                        lost = raised
                item = None  # let go of the work's tensors before waiting
                self._native.pending(-1)
