"""A further rank of a shared model, as a process: `python -m tenon_core.engine.rank_process`.

It starts as the first rank does, then runs each step delta that comes on standard input, and ends with it. It schedules
nothing and answers nobody.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections import deque

import msgspec

from tenon_core.config import EngineConfig
from tenon_core.execution.delta import StepDelta, decode_delta
from tenon_core.observability.log import setup_logging
from tenon_core.torch_import import import_torch
from tenon_platforms.errors import TenonError

from .ranks import LENGTH_BYTES, PATIENCE_SECONDS, WATCH_SECONDS, RankOrder

LOG = logging.getLogger(__name__)
EXIT_FAILED = 4
MAX_DELTA_BYTES = 2**30


def read_exactly(count: int) -> bytes:
    """So many bytes of standard input, or fewer at its end."""
    data = bytearray()
    while len(data) < count and (piece := os.read(0, count - len(data))):
        data += piece
    return bytes(data)


def read_line() -> bytes:
    """The first line; what follows it stays unread."""
    line = bytearray()
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return bytes(line)


def next_delta() -> StepDelta | None:
    """The next step, None at the end."""
    head = read_exactly(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    length = int.from_bytes(head, "little")
    if length > MAX_DELTA_BYTES:
        raise ValueError(f"a step of {length} bytes: the stream is broken")
    data = read_exactly(length)
    return decode_delta(data) if len(data) == length else None


def watch_parent() -> None:
    """End this process when its parent has ended, whatever it waits for."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        time.sleep(PATIENCE_SECONDS)  # an end in order is under way
        os._exit(EXIT_FAILED)

    threading.Thread(target=watch, name="tenon-parent", daemon=True).start()


def serve(order: RankOrder) -> None:
    """Start this rank and run steps to the end."""
    import_torch()
    from tenon_core.execution.executor import InlineExecutor
    from tenon_core.execution.results import LaunchedStep
    from tenon_core.execution.runner import NO_MASK

    from .start import start_rank

    assembled, device = start_rank(EngineConfig.from_flat(**order.config), order.rank, order.size, order.address)
    executor, depth = InlineExecutor(assembled.runner, device), assembled.engine.depth
    flights: deque[LaunchedStep] = deque()
    with device.inference_context():
        while (delta := next_delta()) is not None:
            flights.append(executor.launch(delta, (lambda: NO_MASK) if delta.mode.grammar else None))
            while len(flights) > depth:
                flights.popleft().result()
    for flight in flights:
        flight.result()
    executor.shutdown()


def main() -> int:
    """The process; returns its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first rank decides
    line = read_line()
    if not line:
        return 0
    order = msgspec.json.decode(line, type=RankOrder)
    setup_logging(order.log_level, format=order.log_format)
    watch_parent()
    try:
        serve(order)
    except TenonError as error:
        LOG.error("rank %d: %s", order.rank, error)
        return EXIT_FAILED
    except Exception:
        LOG.exception("rank %d failed", order.rank)
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
