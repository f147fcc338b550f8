"""Which grammar library follows a request: the operator's choice, or by the request's features. Imports neither."""

from __future__ import annotations

from . import xgrammar_library
from .schema_keywords import GUIDANCE, XGRAMMAR, unfollowed
from .structured import StructuredOutputs, parsed
from .tags import is_nested


def backend_for(wanted: StructuredOutputs, backend: str) -> str:
    """ "guidance" or "xgrammar". backend: the operator's choice, for JSON and structural tags; the other kinds are
    always guidance's, which bounds a step's work. "auto" is guidance, and xgrammar, where it is installed, for what it
    alone follows: nested structural tags, and schemas with keywords that guidance does not know.
    """
    if wanted.kind not in ("json", "json_object", "structural_tag"):
        return "guidance"
    if backend != "auto":
        return backend
    return "xgrammar" if _needs_xgrammar(wanted) and xgrammar_library.is_installed() else "guidance"


def _needs_xgrammar(wanted: StructuredOutputs) -> bool:
    if wanted.structural_tag is not None:
        return is_nested(wanted.structural_tag)
    if wanted.json is None:
        return False
    schema = parsed(wanted.json)
    return bool(unfollowed(schema, GUIDANCE)) and not unfollowed(schema, XGRAMMAR)
