"""The import of torch, which is most of a start: what can be done about it from outside.

Half a second of it goes into its libraries, in which Python has no part: a thread loads them while this one still runs
Python (`preload_torch`). What importing makes lives as long as the process: nobody looks for garbage in it
(`import_torch`).
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from importlib.util import find_spec
from pathlib import Path


def preload_torch() -> None:
    """Begin to load torch's libraries in a thread. Does nothing where they are loaded or lie elsewhere.

    Extension modules that are imported meanwhile wait for it, so import those first.
    """
    if sys.platform != "linux" or "torch" in sys.modules:
        return
    spec = find_spec("torch")
    folder = Path(spec.submodule_search_locations[0], "lib") if spec and spec.submodule_search_locations else None
    if folder is not None and folder.is_dir():
        threading.Thread(target=_load, args=(folder,), name="tenon-torch").start()


def _load(folder: Path) -> None:
    """Through the C library, which Python calls without its lock; `ctypes.CDLL` would hold it. What fails here fails,
    and is told, in the import."""
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    for name, scope in (("libtorch_global_deps.so", os.RTLD_GLOBAL), ("libtorch.so", os.RTLD_LOCAL)):  # as torch does
        dlopen(os.fsencode(folder / name), os.RTLD_NOW | scope)


def import_torch() -> None:
    """Import torch without collecting among its objects. Raises `ImportError` where there is none."""
    if "torch" in sys.modules:
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        import torch  # noqa: F401
    finally:
        gc.freeze()
        gc.unfreeze()  # into the oldest generation, without a look at each
        if was_enabled:
            gc.enable()
