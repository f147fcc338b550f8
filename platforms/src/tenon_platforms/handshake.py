"""The handshake: contract versions are compared before a plugin is imported and again after; then its entry is loaded.

Whatever goes wrong becomes a `PluginLoadError` that says which plugin, which versions, the cause and the remedy, and
keeps the traceback's text.
"""

from __future__ import annotations

import importlib
import traceback
from operator import attrgetter
from typing import Any

from packaging.specifiers import InvalidSpecifier

from .contract_fit import incompatibility, incompatibility_remedy
from .errors import PluginError
from .manifest import accepts
from .mending import mending
from .selection import Selection
from .version import contract_version_text


class PluginLoadError(PluginError):
    """The selected plugin does not load. selection: with its state as it turned out. traceback_text: may be empty."""

    def __init__(self, message: str, *, remedy: str, selection: Selection, traceback_text: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.selection = selection
        self.traceback_text = traceback_text


def load_selected(selection: Selection) -> Any:
    """Import the selected platform's entry and return that object, usually a `Platform` class to call with options.

    Raises `PluginLoadError`.
    """
    manifest = selection.manifest
    if not manifest.accepts_contract():
        raise _incompatible(selection, manifest.contract, "its manifest")
    module_name, _, attribute = manifest.entry.partition(":")
    try:
        loaded = attrgetter(attribute)(importlib.import_module(module_name))
    except (Exception, SystemExit) as error:
        raise _broken(
            selection,
            f"{manifest.entry} does not load: {type(error).__name__}: {_first_line(error)}",
            traceback_text="".join(traceback.format_exception(type(error), error, error.__traceback__)),
        ) from error
    _check_loaded(selection, loaded)
    return loaded


def _check_loaded(selection: Selection, loaded: Any) -> None:
    """After import: the code must say what its manifest says."""
    manifest = selection.manifest
    name, contract = getattr(loaded, "name", None), getattr(loaded, "contract", None)
    if not isinstance(name, str) or not isinstance(contract, str) or not contract:
        raise _broken(
            selection,
            f"{manifest.entry} has name {name!r} and contract {contract!r}: both must be strings, as in its manifest",
        )
    if name != manifest.name:
        raise _broken(selection, f"{manifest.entry} is named {name!r}, its manifest says {manifest.name!r}")
    try:
        fits = accepts(contract, contract_version_text())
    except InvalidSpecifier:
        raise _broken(
            selection, f"{manifest.entry} has contract {contract!r}: expected a range such as '>=0.1,<1'"
        ) from None
    if not fits:
        raise _incompatible(selection, contract, f"its code ({manifest.entry})")


def _incompatible(selection: Selection, contract: str, source: str) -> PluginLoadError:
    manifest = selection.manifest
    reason = f"{source} says {incompatibility(manifest, contract)}"
    return PluginLoadError(
        f"platform {manifest.name!r} ({manifest.owner}) is incompatible: {reason}",
        remedy=_with_escape(incompatibility_remedy(manifest, contract), selection),
        selection=selection.failed("incompatible", reason),
    )


def _broken(selection: Selection, reason: str, *, traceback_text: str = "") -> PluginLoadError:
    manifest = selection.manifest
    docs = f" (see {manifest.docs})" if manifest.docs else ""
    mend = manifest.remedy or mending(manifest.distribution, manifest.path)
    return PluginLoadError(
        f"platform {manifest.name!r} ({manifest.owner}, contract {manifest.contract}) is broken: {reason}",
        remedy=_with_escape(mend + docs, selection),
        selection=selection.failed("broken", reason),
        traceback_text=traceback_text,
    )


def _with_escape(remedy: str, selection: Selection) -> str:
    escape = selection.escape
    return f"{remedy}, or --platform {escape}" if escape and escape != selection.platform else remedy


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else "(no message)"
