"""Values of every shape that a published request type has: one a field, a choice or a kind of item, each once.

Made from the `TypedDict`s of a client's library, so that what the library adds is tried without being told.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args, get_origin, get_type_hints

import typing_extensions

DEEPEST = 12
WRAPPERS = (typing_extensions.Required, typing_extensions.NotRequired, typing.Annotated)
PLAIN: dict[Any, tuple[Any, ...]] = {
    str: ("a",), int: (5,), float: (0.5,), bool: (True, False), object: ({},), Any: ({},), type(None): (),
}  # fmt: skip


def variants(hint: Any, depth: int = 0) -> Iterator[Any]:
    """Values of a type. Of an object: what it needs alone, then with each field in each of its shapes."""
    if depth > DEEPEST:
        return
    origin, inner = get_origin(hint), get_args(hint)
    if origin in WRAPPERS:
        yield from variants(inner[0], depth)
    elif origin in (typing.Union, types.UnionType):
        for one in inner:
            yield from variants(one, depth + 1)
    elif origin is typing.Literal:
        yield from inner
    elif typing_extensions.is_typeddict(hint):
        yield from _objects(hint, depth)
    elif origin in (list, Iterable, Sequence):
        yield from ([one] for one in variants(inner[0], depth + 1))
    elif origin is dict:
        yield from ({"a": one} for one in variants(inner[1], depth + 1))
    else:
        yield from PLAIN.get(hint, ("a",))


def _objects(kind: Any, depth: int) -> Iterator[dict[str, Any]]:
    hints = get_type_hints(kind, include_extras=True)
    needed = [name for name, hint in hints.items() if _is_needed(kind, name, hint)]
    base = {name: next(variants(hints[name], depth + 1), None) for name in needed}
    yield base
    for name, hint in hints.items():
        for place, one in enumerate(variants(hint, depth + 1)):
            if name not in needed or place:
                yield {**base, name: one}


def _is_needed(kind: Any, name: str, hint: Any) -> bool:
    """Whether the field must be there; the classes' own lists are wrong where annotations are texts."""
    if get_origin(hint) is typing_extensions.Required:
        return True
    return name in kind.__required_keys__ and get_origin(hint) is not typing_extensions.NotRequired
