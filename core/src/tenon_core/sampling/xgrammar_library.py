"""XGrammar's native part, without what its package imports beside it.

`import xgrammar` loads Transformers, for a type annotation and for helpers that are not used here: seconds, and 200
MB. Its submodules come without, so they are imported below a bare parent, which is taken away again: whoever imports
the package later gets all of it, with these same submodules. TVM's FFI looks for torch; a process that has not loaded
it yet (a grammar worker) is kept from it, as the masks are numpy's.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

from tenon_platforms.errors import ConfigError

MISSING = "XGrammar is not installed"
REMEDY = "pip install tenon-core[xgrammar]"
_LOCK = threading.Lock()
_FLAG = "TVM_FFI_DISABLE_TORCH_C_DLPACK"  # else it may compile a C++ extension of torch while it is imported


class Library(NamedTuple):
    """grammar: the class `xgrammar.Grammar`. core: the native TokenizerInfo, GrammarCompiler, GrammarMatcher."""

    grammar: Any
    core: Any


def is_installed() -> bool:
    """Whether the package is there. Imports nothing."""
    return find_spec("xgrammar") is not None


def load() -> Library:
    """The library. Raises `ConfigError` where it is not installed, or not one that we know."""
    spec = find_spec("xgrammar")
    if spec is None or spec.submodule_search_locations is None:
        raise ConfigError(MISSING, remedy=f"run: {REMEDY}")
    with _LOCK, _bare_parent(list(spec.submodule_search_locations)):
        try:
            import_module("xgrammar.load_binding")
            import_module("xgrammar.exception")
            core, grammar = import_module("xgrammar.base")._core, import_module("xgrammar.grammar").Grammar
        except (ImportError, AttributeError, OSError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"XGrammar cannot be loaded: {' '.join(str(error).split())[:300]}", remedy=f"run: {REMEDY}"
            ) from error
    return Library(grammar, core)


@contextmanager
def _bare_parent(paths: list[str]) -> Iterator[None]:
    if "xgrammar" in sys.modules:  # somebody has loaded it whole
        yield
        return
    parent = ModuleType("xgrammar")
    parent.__path__ = paths
    sys.modules["xgrammar"] = parent
    is_without_torch = "torch" not in sys.modules
    if is_without_torch:
        sys.modules["torch"] = None  # type: ignore[assignment]  # how an import is told that there is none
    before = os.environ.get(_FLAG)
    os.environ[_FLAG] = "1"
    try:
        yield
    finally:
        sys.modules.pop("xgrammar", None)
        if is_without_torch:
            sys.modules.pop("torch", None)
        if before is None:
            del os.environ[_FLAG]
        else:
            os.environ[_FLAG] = before
