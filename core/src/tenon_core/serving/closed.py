"""What all models of requests share: strict types, no unknown names, and an end to looking at the first thing wrong.

A validator that tells every mistake makes an object for each: a list of millions of wrong entries would fill the memory
and hold the event loop for minutes. So lists stop at their first mistake, and maps are counted before they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MAX_LIST = 65_536  # entries of any list, before its own ceiling is looked at
MAX_FIELDS = 256  # of one object that has a model
SHOWN = 80  # characters of a wrong value
_SHOWN_ENTRIES = 8


class Fields(BaseModel):
    """An object of a request."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _check_count(cls, given: Any) -> Any:
        return _counted(given, MAX_FIELDS)


def entries(longest: int = MAX_LIST, *, least: int | None = None) -> Any:
    """A list's bounds."""
    return Field(min_length=least, max_length=longest, fail_fast=True)


def at_most(longest: int) -> BeforeValidator:
    """A map's bound."""
    return BeforeValidator(lambda given: _counted(given, longest))


def _counted(given: Any, longest: int) -> Any:
    if isinstance(given, Mapping) and len(given) > longest:
        raise ValueError(f"it has {len(given)} entries, and at most {longest} are allowed")
    return given


Labels = Annotated[dict[str, str], at_most(16)]  # `metadata`


def shown(value: Any) -> str:
    """The beginning of a value, in words; never made from all of a large one."""
    return repr(_beginning(value, 4))[:SHOWN]


def _beginning(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return value[:SHOWN]
    if isinstance(value, (list, tuple)):
        return [_beginning(one, depth - 1) for one in value[:_SHOWN_ENTRIES]] if depth else []
    if isinstance(value, Mapping):
        some = islice(value.items(), _SHOWN_ENTRIES if depth else 0)
        return {str(key)[:SHOWN]: _beginning(one, depth - 1) for key, one in some}
    return value
