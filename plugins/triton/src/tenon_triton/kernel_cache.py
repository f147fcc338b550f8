"""Compiled kernels in a folder that may be moved: made on one machine, found on others.

    keep_in(folder)     from now on this process reads and writes its kernels there

Triton's own cache lists a kernel's files by where they lay when they were written, so that a copy elsewhere finds none
of them; here they are looked for beside the list. A folder that can only be read, of an image or a shared mount, serves
too: what it lacks, or has and may not be read, is compiled into Triton's own place, as is what lies half made in a
folder of another user. What a kernel is found by (source, constants, architecture, versions of Triton and of its
assembler) has no paths in it, so machines with such a GPU and such versions share them.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path
from typing import ClassVar

from triton import knobs
from triton.runtime.cache import FileCacheManager

from tenon_platforms.errors import ConfigError

LOG = logging.getLogger(__name__)
GROUP = "__grp__"  # before the name of a list, as Triton has it


def _is_there(file: Path) -> bool:
    """Whether it can be read and holds something: a crash may leave empty ones, another user files of their own."""
    try:
        found = file.stat()
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size > 0 and os.access(file, os.R_OK)


class MovableCache(FileCacheManager):  # type: ignore[misc]  # triton is untyped
    """One kernel's files. Triton makes one for each, of a class that it has once a process, and so have we.

    kept_in: the folder asked for; shipped: the same where it is only read, and looked at first. own: Triton's place.
    """

    kept_in: ClassVar[Path | None] = None
    shipped: ClassVar[Path | None] = None
    own: ClassVar[Path | None] = None

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self._places: list[Path] = []
        if override or dump:
            super().__init__(key, override, dump)
        else:  # nothing is made before it is written to: Triton's own place may not be writable either
            place = Path(knobs.cache.dir) / key
            self._places = [self.shipped / key] if self.shipped is not None else []
            if self.own is not None and os.access(place, os.F_OK) and not os.access(place, os.W_OK | os.X_OK):
                self._places, place = [place], self.own / key  # of another user, in a folder that all may write to
            self.key, self.cache_dir, self.lock_path = key, str(place), str(place / "lock")
        self._places.append(Path(self.cache_dir))

    def has_file(self, filename: str) -> bool:
        return self.get_file(filename) is not None

    def get_file(self, filename: str) -> str | None:
        return next((str(place / filename) for place in self._places if _is_there(place / filename)), None)

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Name and place of each file on the list; None where one is gone, or the list is none, or leads elsewhere."""
        for place in self._places:
            try:
                names = json.loads((place / f"{GROUP}{filename}").read_text())["child_paths"]
                files = {name: place / name for name in names}
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                continue
            if filename in files and all(file.parent == place and _is_there(file) for file in files.values()):
                return {name: str(file) for name, file in files.items()}
        return None


def keep_in(folder: str) -> None:
    """Raises `ConfigError` where it is no folder and none can be made, or where this process has another one."""
    try:
        path = Path(folder).expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError(
            f"kernels cannot be kept in {folder}: {error}", remedy="name the folder by its whole path"
        ) from error
    if MovableCache.kept_in is not None:
        if MovableCache.kept_in != path:
            raise ConfigError(
                f"kernels of this process are kept in {MovableCache.kept_in}, and cannot be in {path} too",
                remedy="give every engine of a process the same folder",
            )
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        has_kernels = any(path.iterdir())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"kernels cannot be kept in {path}: {getattr(error, 'strerror', None) or error}",
            remedy="name a folder that can be read, or made",
        ) from error
    if os.access(path, os.W_OK | os.X_OK):
        own = Path(knobs.cache.dir)  # the same in a process that was started by one that keeps its kernels here
        MovableCache.own = own if own != path else Path(knobs.cache.get_triton_dir("cache"))
        knobs.cache.dir = str(path)
    else:
        MovableCache.shipped = path
        if not has_kernels:
            LOG.warning("%s can only be read, and holds no kernels: they are compiled into %s", path, knobs.cache.dir)
    MovableCache.kept_in = path
    knobs.cache.manager_class = MovableCache
