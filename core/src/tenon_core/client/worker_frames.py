"""The worker's half of `worker_process.py`: frames on standard input and output, and limits on oneself.

Length-prefixed JSON. A worker limits its own memory, and sets itself an alarm for every request, so that it cannot
outlive a parent that died.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

HEADER = struct.Struct("!I")
MAX_FRAME = 64 * 2**20
SELF_KILL_MARGIN_S = 1.0

Answer = Callable[[dict[str, Any]], dict[str, Any]]


def read_frame(stream: BinaryIO) -> dict[str, Any] | None:
    """One message, or None at the end of the stream or where it is none."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (length,) = HEADER.unpack(header)
    if length > MAX_FRAME:
        return None
    body = stream.read(length)
    if len(body) < length:
        return None
    value = json.loads(body)
    return value if isinstance(value, dict) else None


def write_frame(stream: BinaryIO, value: dict[str, Any]) -> None:
    """Send one message."""
    body = json.dumps(value).encode("ascii")
    stream.write(HEADER.pack(len(body)) + body)
    stream.flush()


def limit_memory(num_bytes: int) -> None:
    """Cap this process's address space, where the system can."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return
    try:
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
    except (OSError, ValueError):  # refused, as some systems do: the time limit still holds
        return


def work(begin: Callable[[dict[str, Any]], tuple[Answer | None, dict[str, Any]]]) -> None:
    """Answer requests until the parent closes the pipe.

    begin: from the first message, which brings `seconds` and `memory_bytes` among others, to (what answers the
    following ones, or None: there is nothing to do; the reply to the first).
    """
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing but frames goes to the parent
    start = read_frame(source)
    if start is None:
        return
    limit_memory(int(start["memory_bytes"]))
    answer, reply = begin(start)
    write_frame(sink, reply)
    if answer is None:
        return
    seconds = float(start["seconds"]) + SELF_KILL_MARGIN_S
    while (request := read_frame(source)) is not None:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, seconds)  # the default action of its signal ends the process
        reply = answer(request)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        write_frame(sink, reply)
