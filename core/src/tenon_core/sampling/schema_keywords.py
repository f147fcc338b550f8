"""The keywords of JSON Schema: which of them each grammar library follows, and where in a schema keywords stand.

A keyword that some draft knows and a library does not follow is refused with its path. Words that no draft knows are
annotations, as the standard has it. Looks at what a schema's root reaches, also through `$ref`. Knows no library.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote


def words(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


_FOLLOWED_BY_BOTH = words(
    "type enum const $ref anyOf allOf properties required additionalProperties minProperties maxProperties items"
    " prefixItems minItems maxItems minLength maxLength pattern format minimum maximum exclusiveMinimum"
    " exclusiveMaximum multipleOf"
)
GUIDANCE = _FOLLOWED_BY_BOTH | words("oneOf patternProperties additionalItems")
XGRAMMAR = _FOLLOWED_BY_BOTH | words("propertyNames unevaluatedItems unevaluatedProperties")
_FOLLOWED_BY_NONE = words(
    "not if then else contains minContains maxContains uniqueItems dependentRequired dependentSchemas dependencies"
    " $dynamicRef $dynamicAnchor $recursiveRef $recursiveAnchor"
)
KEYWORDS = GUIDANCE | XGRAMMAR | _FOLLOWED_BY_NONE
MAPS = words("properties patternProperties dependentSchemas")  # of schemas
LISTS = words("allOf anyOf oneOf prefixItems")
ONES = words(
    "items additionalItems contains additionalProperties propertyNames unevaluatedItems unevaluatedProperties not if"
    " then else"
)


def unfollowed(schema: Any, followed: frozenset[str]) -> list[str]:
    """JSON pointers of the keywords in `schema` that are not among `followed`."""
    return [pointer for pointer, keyword in reached(schema) if keyword not in followed]


def reached(schema: Any) -> Iterator[tuple[str, str]]:
    """(pointer, keyword) of every keyword that counts for `schema`, each once."""
    waiting, seen = [("", schema)], {""}
    while waiting:
        at, here = waiting.pop()
        if not isinstance(here, dict):
            continue
        for keyword, value in here.items():
            if keyword not in KEYWORDS:
                continue
            pointer = f"{at}/{escaped(keyword)}"
            if keyword != "uniqueItems" or value is not False:
                yield pointer, keyword
            inner = list(_inner(keyword, value, pointer))
            if keyword == "$ref" and isinstance(value, str) and (found := resolve(schema, value)) is not None:
                inner.append(found)
            for one in inner:
                if one[0] not in seen:
                    seen.add(one[0])
                    waiting.append(one)


def _inner(keyword: str, value: Any, pointer: str) -> Iterator[tuple[str, Any]]:
    if keyword in MAPS and isinstance(value, dict):
        for key, schema in value.items():
            yield f"{pointer}/{escaped(key)}", schema
    elif (keyword in LISTS or keyword == "items") and isinstance(value, list):
        for index, schema in enumerate(value):
            yield f"{pointer}/{index}", schema
    elif keyword in ONES:
        yield pointer, value


def resolve(root: Any, reference: str) -> tuple[str, Any] | None:
    """(pointer, schema) that a reference inside the same text means; None where it means none there."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    here, at = root, ""
    for part in unquote(reference[1:]).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(here, dict) and key in here:
            here = here[key]
        elif isinstance(here, list) and key.isdecimal() and int(key) < len(here):
            here = here[int(key)]
        else:
            return None
        at += f"/{escaped(key)}"
    return at, here


def escaped(key: str) -> str:
    """A key as a JSON pointer has it."""
    return key.replace("~", "~0").replace("/", "~1")
