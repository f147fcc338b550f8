"""Responses that can be asked for again: in memory, bounded in number and bytes for each key, the least used go first.

A response is found only with the key that made it; to all others it does not exist. What one key keeps never displaces
another's. Items are kept as the JSON they are sent as; a chain of responses shares them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from tenon_platforms.errors import CapacityError

ENTRY_BYTES, ITEM_BYTES = 1024, 96  # what an entry and an item take beside their JSON, about
MAX_RUNNING_SHARE = 2  # at most one in so many places is held by responses that still run


class Live(Protocol):
    """A response that still runs."""

    def response(self) -> dict[str, Any]: ...
    def cancel(self) -> None: ...


Item = tuple[str, bytes]  # its id, and all of it as JSON


@dataclass(slots=True, kw_only=True)
class Stored:
    """One response. items: the whole conversation, its output last; num_input: how many of them are not output.

    live: what runs for it, None once it has ended. body: the response as JSON, once it has.
    """

    id: str
    items: tuple[Item, ...]
    num_input: int
    live: Live | None = None
    body: bytes = b""
    is_complete: bool = False  # whether another one may follow it

    @property
    def num_bytes(self) -> int:
        """What it takes; items that it shares with others are counted in full."""
        return ENTRY_BYTES + len(self.body) + sum(len(data) + ITEM_BYTES for _, data in self.items)

    def response(self) -> dict[str, Any]:
        """The response as it is now."""
        if self.live is not None:
            return self.live.response()
        found: dict[str, Any] = msgspec.json.decode(self.body)
        return found


@dataclass(slots=True)
class _Shelf:
    """One key's. sizes: of the entries when they came; items: by id, with the number of entries that hold them."""

    entries: OrderedDict[str, Stored] = field(default_factory=OrderedDict)
    sizes: dict[str, int] = field(default_factory=dict)
    items: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    num_bytes: int = 0

    def add(self, entry: Stored) -> None:
        self.entries[entry.id] = entry
        self.sizes[entry.id] = entry.num_bytes
        self.num_bytes += self.sizes[entry.id]
        for identity, data in entry.items:
            self.items[identity] = (data, self.items.get(identity, (b"", 0))[1] + 1)

    def drop(self, identity: str) -> Stored | None:
        entry = self.entries.pop(identity, None)
        if entry is None:
            return None
        self.num_bytes -= self.sizes.pop(identity)
        for one, _ in entry.items:
            data, count = self.items[one]
            self.items[one] = (data, count - 1)
            if count == 1:
                del self.items[one]
        return entry


@dataclass(slots=True, kw_only=True)
class ResponseStore:
    """max_entries, max_bytes: of each key. owner: a digest of the key, as `Keys.check` gives it."""

    max_entries: int
    max_bytes: int
    _shelves: dict[str, _Shelf] = field(default_factory=dict)

    @property
    def is_on(self) -> bool:
        """Whether anything is kept."""
        return self.max_entries > 0

    def put(self, owner: str, entry: Stored) -> bool:
        """Keep it, in place of one with its id; False where it is larger than all that may be kept."""
        shelf = self._shelves.setdefault(owner, _Shelf())
        shelf.drop(entry.id)
        if not self.is_on or entry.num_bytes > self.max_bytes:
            return False
        shelf.add(entry)
        while len(shelf.entries) > self.max_entries or shelf.num_bytes > self.max_bytes:
            oldest = next((one for one in shelf.entries.values() if one.live is None and one is not entry), entry)
            shelf.drop(oldest.id)
        return entry.id in shelf.entries

    def check_room(self, owner: str) -> None:
        """Raise `CapacityError` where too many of this key's responses still run in the background."""
        shelf = self._shelves.get(owner)
        most = max(self.max_entries // MAX_RUNNING_SHARE, 1)
        if shelf is not None and sum(one.live is not None for one in shelf.entries.values()) >= most:
            raise CapacityError(f"{most} responses of this key still run: wait for one to end, or cancel one")

    def get(self, owner: str, identity: str) -> Stored | None:
        """The response of that id, if that key made it."""
        shelf = self._shelves.get(owner)
        if shelf is None or identity not in shelf.entries:
            return None
        shelf.entries.move_to_end(identity)
        return shelf.entries[identity]

    def item(self, owner: str, identity: str) -> dict[str, Any] | None:
        """An item of any of that key's responses."""
        shelf = self._shelves.get(owner)
        if shelf is None or identity not in shelf.items:
            return None
        found: dict[str, Any] = msgspec.json.decode(shelf.items[identity][0])
        return found

    def remove(self, owner: str, identity: str) -> Stored | None:
        """Forget it; what was there."""
        shelf = self._shelves.get(owner)
        return None if shelf is None else shelf.drop(identity)


def as_items(items: Sequence[dict[str, Any]]) -> tuple[Item, ...]:
    """Items as they are kept."""
    return tuple((one["id"], msgspec.json.encode(one)) for one in items)
