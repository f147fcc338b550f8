"""Imported at the start of every Python process that has this folder on its path: tells what deserialises objects.

Each event is one line `pid event detail` in a file of its process under AUDIT_FOLDER. Reading compiled modules is
what the import system does with `marshal`, so its own calls are left out; all other callers are told.
"""

import os
import sys

WATCHED = ("pickle.find_class", "marshal.load", "marshal.loads")  # dill and cloudpickle go through pickle
IMPORT_SYSTEM = ("<frozen importlib._bootstrap_external>", "<frozen zipimport>")
_folder = os.environ.get("AUDIT_FOLDER")


def _hook(event: str, args: tuple[object, ...]) -> None:
    if event not in WATCHED:
        return
    caller = sys._getframe(1)
    if event.startswith("marshal.") and caller.f_code.co_filename in IMPORT_SYSTEM:
        return
    _tell(f"{event} {args!r:.200} called by {caller.f_code.co_filename}:{caller.f_lineno}")


def _tell(line: str) -> None:
    with open(f"{_folder}/{os.getpid()}", "a", encoding="utf-8", errors="backslashreplace") as file:  # noqa: PTH123
        file.write(f"{os.getpid()} {line}\n")


if _folder is not None:
    _tell("watched")
    sys.addaudithook(_hook)
