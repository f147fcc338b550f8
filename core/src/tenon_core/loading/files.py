"""Opening files of a model folder that somebody else wrote: regular files only, inside the folder, of bounded size.

Nothing here blocks on a pipe or device, follows a link out of the folder, or parses JSON deeper or larger than asked.
The one allowed link leads from a hub cache's `snapshots/REVISION` into the `blobs` folder beside it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO

from tenon_platforms.errors import ConfigError

from .strict_json import TooDeepError, loads_strict

MIB = 1 << 20
MAX_CONFIG_BYTES = 4 * MIB  # the greatest known config is a tenth of this; parsing takes up to 30 times as much memory
MAX_JSON_DEPTH = 64
MAX_JSON_DIGITS = 400


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading; pipes, devices, sockets and folders are refused without waiting for them."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # before opening: opening some devices acts on them
            raise ConfigError(f"{path} is not a regular file")
        descriptor = os.open(path, flags)
    except OSError as error:
        raise ConfigError(f"cannot open {path}: {error.strerror or error}") from error
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ConfigError(f"{path} is not a regular file")
        yield file


def read_bounded(path: Path, limit: int = MAX_CONFIG_BYTES) -> bytes:
    """The whole content of a file of at most `limit` bytes."""
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ConfigError(f"{path} is larger than {limit} bytes, which no file of its kind needs")
    return content


def read_text(path: Path, limit: int = MAX_CONFIG_BYTES) -> str:
    """The same as UTF-8 text."""
    try:
        return read_bounded(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def read_json(path: Path, limit: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """A JSON object from a file, bounded in size and depth, without NaN, infinities or keys named twice."""
    return parse_json(read_bounded(path, limit), str(path))


def parse_json(content: bytes, what: str) -> dict[str, Any]:
    """A JSON object; `what` names it in errors."""
    try:
        value = loads_strict(content, max_depth=MAX_JSON_DEPTH, max_digits=MAX_JSON_DIGITS)
    except TooDeepError as error:
        raise ConfigError(f"{what} is {error}") from None
    except ValueError as error:  # also JSONDecodeError and UnicodeDecodeError
        raise ConfigError(f"{what} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{what} holds a JSON {type(value).__name__}: expected an object")
    return value


def confined(folder: Path, name: str, *, named_by: str) -> Path:
    """The file `name` of `folder`; raises where it would lie outside, by its parts or through a link.

    named_by: the file that named it, for the message.
    """
    if (
        not name
        or "\\" in name
        or "\0" in name
        or PurePosixPath(name).is_absolute()
        or PureWindowsPath(name).is_absolute()
        or PureWindowsPath(name).drive
        or ".." in PurePosixPath(name).parts
    ):
        raise ConfigError(f"{named_by} names the file {name!r:.200}, which does not lie inside the model folder")
    path = folder / name
    try:
        target = path.resolve()
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"cannot follow {path}: {error}") from error
    if not any(target.is_relative_to(root) for root in _roots(folder)):
        raise ConfigError(
            f"{path} is a link to {target}, outside the model folder",
            remedy="copy the file into the folder",
        )
    return path


def existing(folder: Path, name: str) -> Path | None:
    """The file `name` of a folder, confined, or None where there is none."""
    if not os.path.lexists(folder / name):
        return None
    return confined(folder, name, named_by=str(folder))


def _roots(folder: Path) -> tuple[Path, ...]:
    home = folder.resolve()
    if home.parent.name == "snapshots" and home.parent.parent.name.startswith(("models--", "datasets--")):
        return (home, home.parent.parent / "blobs")
    return (home,)
