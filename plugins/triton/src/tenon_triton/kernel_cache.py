"""Compiled kernels in a folder that may be moved: made on one machine, found on others.

    keep_in(folder)     from now on this process reads and writes its kernels there

Triton's own cache lists a kernel's files by where they lay when they were written, so that a copy elsewhere finds none
of them; here they are looked for beside the list. A folder that can only be read, of an image or a shared mount, serves
too: what it lacks is compiled into Triton's own place. What a kernel is found by (source, constants, architecture,
versions of Triton and its assembler) has no paths in it, so machines with such a GPU and such versions share them.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import ClassVar

from triton import knobs
from triton.runtime.cache import FileCacheManager

from tenon_platforms.errors import ConfigError

LOG = logging.getLogger(__name__)
GROUP = "__grp__"  # before the name of a list, as Triton has it


class MovableCache(FileCacheManager):  # type: ignore[misc]  # triton is untyped
    """One kernel's files. Triton makes one for each, of a class that it has once a process, and so have we.

    kept_in: the folder asked for; shipped: the same where it is only read, and looked at first.
    """

    kept_in: ClassVar[Path | None] = None
    shipped: ClassVar[Path | None] = None

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self._places: list[Path] = []
        if override or dump:
            super().__init__(key, override, dump)
        else:  # nothing is made before it is written to: Triton's own place may not be writable either
            own = Path(knobs.cache.dir) / key
            self.key, self.cache_dir, self.lock_path = key, str(own), str(own / "lock")
            self._places = [self.shipped / key] if self.shipped is not None else []
        self._places.append(Path(self.cache_dir))

    def has_file(self, filename: str) -> bool:
        return self.get_file(filename) is not None

    def get_file(self, filename: str) -> str | None:
        return next((str(place / filename) for place in self._places if (place / filename).exists()), None)

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Name and place of each file on the list; None where a file is gone, or the list is none."""
        for place in self._places:
            try:
                names = json.loads((place / f"{GROUP}{filename}").read_text())["child_paths"]
                files = {name: place / name for name in names}
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if all(file.exists() for file in files.values()):
                return {name: str(file) for name, file in files.items()}
        return None


def keep_in(folder: str) -> None:
    """Raises `ConfigError` where it is no folder and none can be made, or where this process has another one."""
    path = Path(folder).expanduser().absolute()
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
    except OSError as error:
        raise ConfigError(
            f"kernels cannot be kept in {path}: {error.strerror or error}",
            remedy="name a folder that can be read, or made",
        ) from error
    if os.access(path, os.W_OK | os.X_OK):
        knobs.cache.dir = str(path)
    else:
        MovableCache.shipped = path
        if not has_kernels:
            LOG.warning("%s can only be read, and holds no kernels: they are compiled into %s", path, knobs.cache.dir)
    MovableCache.kept_in = path
    knobs.cache.manager_class = MovableCache
