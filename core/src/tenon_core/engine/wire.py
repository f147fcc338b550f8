"""What both ends of the link between a front end and an engine process agree on, beside the messages themselves.

client -> engine   [secret, message]     an empty message says: answer here
engine -> client   [message]
"""

from __future__ import annotations

from typing import Any

import msgspec

MAX_MESSAGE_BYTES = 64 * 2**20
HEARTBEAT_SECONDS = 1.0  # the engine's loop is never silent for longer, unless it hangs or computes
SECRET_BYTES = 32
SOCKET_NAME, LOCK_NAME = (
    "engine",
    "lock",
)  # the files of the link's private folder; the client makes it and holds the lock


class StartOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an engine process reads on standard input: its configuration by flat names, and where to listen."""

    config: dict[str, Any]
    address: str
    secret: str  # hexadecimal
    log_level: str = "info"
    log_format: str = "text"
