"""The private folder of a link's socket, and what is done about folders whose owners were killed.

The owner holds a lock on a file in it for as long as it lives, which the system takes back however it ends, and which
is seen from other containers too (process ids are not). Whoever makes a folder first removes those that nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from tenon_core.engine.wire import LOCK_NAME, SOCKET_NAME

PREFIX = "tenon-"
MAX_SOCKET_PATH = 100  # bytes; the system's limit for unix sockets is 107, or 103


class PrivateFolder:
    """A folder that only this user may enter (mkdtemp makes it 0700), of a path short enough for a socket."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        if len(os.fsencode(self.path / SOCKET_NAME)) > MAX_SOCKET_PATH:
            self.path.rmdir()
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
        self._lock = _locked(self.path)
        remove_abandoned(self.path.parent)

    @property
    def socket(self) -> Path:
        """Where the socket lies."""
        return self.path / SOCKET_NAME

    def remove(self) -> None:
        """Remove it; may be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _locked(folder: Path) -> int:
    """The descriptor of the folder's lock; the file has its name only once it is locked."""
    unnamed = folder / f"{LOCK_NAME}.new"
    descriptor = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    unnamed.rename(folder / LOCK_NAME)
    return descriptor


def remove_abandoned(parent: Path) -> list[Path]:
    """Remove this user's folders in `parent` whose lock nobody holds; returns them."""
    return [folder for folder in parent.glob(f"{PREFIX}*") if _is_removed(folder)]


def _is_removed(folder: Path) -> bool:
    with suppress(OSError):  # not ours to enter, held by its owner (BlockingIOError), or gone meanwhile
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            return False
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
            return True
        finally:
            os.close(descriptor)
    return False
