"""Metrics of several API processes as one: what each counted itself is added up, the engine's counters are in all.

Every process answers /metrics on a unix socket in a private folder; whoever is scraped asks the others. One that does
not answer in time is left out: its counts come back with the next scrape.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Sequence
from pathlib import Path

import httpx

from tenon_core.observability.metric_names import ALIASES, COUNTED_HERE, PREFIX

SECONDS = 2.0
_COUNTED = [name.encode() for own in COUNTED_HERE for name in (f"{PREFIX}{own}", *ALIASES.get(f"{PREFIX}{own}", ()))]
SUMMED = re.compile(rb"(?:%s)(?:_total|_bucket|_sum|_count)?[{ ]" % b"|".join(_COUNTED))
_LINE = re.compile(rb"([^#\s][^ ]*) ([0-9.eE+-]+|NaN)")


def unix_listener(path: Path) -> socket.socket:
    """A socket that this user alone may use."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(16)
    listener.setblocking(False)
    return listener


async def gathered(own: bytes, siblings: Sequence[Path]) -> bytes:
    """This process's metrics with the others' counts."""
    return merged(own, [one for one in await asyncio.gather(*map(_ask, siblings)) if one is not None])


async def _ask(path: Path) -> bytes | None:
    try:
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path)), timeout=SECONDS) as client:
            answer = await client.get("http://localhost/metrics")
    except httpx.HTTPError:
        return None
    return answer.content if answer.status_code == 200 else None


def merged(own: bytes, others: Sequence[bytes]) -> bytes:
    """The first text, its summed lines with the others' added."""
    sums: dict[bytes, float] = {}
    for text in others:
        for row in text.splitlines():
            match = _LINE.fullmatch(row)
            if match is not None and SUMMED.match(row):
                sums[match[1]] = sums.get(match[1], 0.0) + float(match[2])
    rows = []
    for row in own.splitlines():
        match = _LINE.fullmatch(row)
        if match is not None and match[1] in sums:
            row = b"%s %s" % (match[1], repr(float(match[2]) + sums[match[1]]).encode())
        rows.append(row)
    return b"\n".join(rows) + b"\n"
