"""A JSON schema as XGrammar is to see it: what that library follows to the letter, and nothing else.

The library overlooks much in silence (what stands beside `$ref` or `enum`, a bound beside `multipleOf`, a name written
with escapes), so a schema is not handed over but written anew, and what cannot be said is refused with its path. Where
a schema leaves open, the new one may be narrower: an object that names properties has no others, and a schema
without `type` is of the types that its keywords speak of. Every output still follows the schema that was given.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .schema_keywords import KEYWORDS, XGRAMMAR, escaped, resolve, words
from .structured import parsed, refusal

Schema = dict[str, Any]
FORMATS = words("date time date-time duration ipv6 uuid hostname email uri")
ALONE = ("$ref", "const", "enum", "anyOf", "allOf")  # the first of these that is there is all that the library sees
MAX_MULTIPLE = 1000
MAX_EXACT = 2**53  # beyond it, whole numbers are written as rounded ones
MAX_DECIMALS = 6  # of a number's bound
MAX_COUNT = 10_000  # of items, properties or characters
TYPE_KEYWORDS = {
    "object": words(
        "properties required additionalProperties unevaluatedProperties propertyNames minProperties maxProperties"
    ),
    "array": words("items prefixItems unevaluatedItems minItems maxItems"),
    "string": words("minLength maxLength pattern format"),
    "number": words("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf"),
    "integer": words("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf"),
    "boolean": frozenset(),
    "null": frozenset(),
}
MAX_PATTERN = 256
# No repeated group, no look-around, no anchor inside, no character that JSON writes as an escape, no class that only
# ECMA's expressions read so.
PLAIN_PATTERN = re.compile(
    r"""\^? (?: \\[dwsS] | \\[-./+*?()\[\]{}|^$] | \[\^? | \((?!\?) | \(\?: | \)(?![*+?{])
    | [^\\"^$()\[\x00-\x1f\x7f] )* \$?""",
    re.X,
)


def translate(schema: str) -> str:
    """The schema's text for the library. Raises `RequestError` that lists the paths of what it cannot follow."""
    work = _Translation(parsed(schema))
    text = json.dumps(work.whole(), ensure_ascii=False)
    if work.refused:
        listed = ", ".join(dict.fromkeys(work.refused[:8]))
        raise refusal(f"uses JSON schema keywords that are not supported (backend xgrammar): {listed}")
    return text


@dataclass(slots=True)
class _Translation:
    root: Any
    refused: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # pointer of a reference's target -> its name in the new $defs
    waiting: list[tuple[str, str, Any]] = field(default_factory=list)

    def whole(self) -> Schema:
        made = self.schema(self.root, "")
        definitions: Schema = {}
        while self.waiting:
            name, at, target = self.waiting.pop()
            definitions[name] = self.schema(target, at)
        return {**made, "$defs": definitions} if definitions else made

    def refuse(self, at: str) -> Schema:
        self.refused.append(at or "/")
        return {}

    def schema(self, value: Any, at: str) -> Schema:
        if value is True:
            return {}
        if not isinstance(value, dict):  # nothing follows `false`
            return self.refuse(at)
        given = {key: inner for key, inner in value.items() if key in KEYWORDS}
        given = {key: inner for key, inner in given.items() if (key, inner) != ("uniqueItems", False)}
        for key in given:
            if key not in XGRAMMAR:
                self.refuse(f"{at}/{escaped(key)}")
        if at and "$id" in value:  # references below it would mean something else
            self.refuse(f"{at}/$id")
        leader = next((key for key in ALONE if key in given), None)
        return self._typed(given, at) if leader is None else self._alone(leader, given, at)

    # what stands alone

    def _alone(self, leader: str, given: Schema, at: str) -> Schema:
        value, place = given[leader], f"{at}/{leader}"
        types = given.pop("type", None) if leader in ("const", "enum") else None
        for key in given:
            if key != leader:
                self.refuse(f"{at}/{escaped(key)}")
        if leader == "$ref":
            return self._reference(value, place)
        if leader in ("anyOf", "allOf"):
            if not isinstance(value, list) or not value or (leader == "allOf" and len(value) > 1):
                return self.refuse(place)
            return {leader: [self.schema(one, f"{place}/{index}") for index, one in enumerate(value)]}
        values = [value] if leader == "const" else value
        if not isinstance(values, list) or not values or not all(map(_is_exact, values)):
            return self.refuse(place)
        allowed = [types] if isinstance(types, str) else types
        if allowed is not None and not all(any(_is_of(one, kind) for kind in allowed) for one in values):
            return self.refuse(f"{at}/type")
        return {leader: value}

    def _reference(self, value: Any, place: str) -> Schema:
        found = resolve(self.root, value) if isinstance(value, str) else None
        if found is None or self._is_circular(value):
            return self.refuse(place)
        at, target = found
        if at not in self.names:
            self.names[at] = f"d{len(self.names)}"
            self.waiting.append((self.names[at], at, target))
        return {"$ref": f"#/$defs/{self.names[at]}"}

    def _is_circular(self, reference: Any) -> bool:
        """Whether references lead on to each other and to nothing else."""
        seen: set[str] = set()
        while isinstance(reference, str) and (found := resolve(self.root, reference)) is not None:
            if found[0] in seen:
                return True
            seen.add(found[0])
            reference = found[1].get("$ref") if isinstance(found[1], dict) else None
        return False

    # by type

    def _typed(self, given: Schema, at: str) -> Schema:
        types = given.get("type")
        if types is None:  # those that the keywords speak of
            kinds = [kind for kind, own in TYPE_KEYWORDS.items() if kind != "integer" and own & given.keys()]
        else:
            kinds = [types] if isinstance(types, str) else types
        if not isinstance(kinds, list) or not all(isinstance(kind, str) and kind in TYPE_KEYWORDS for kind in kinds):
            return self.refuse(f"{at}/type")
        made = [self._of_type(kind, given, at) for kind in kinds]
        return {"anyOf": made} if len(made) > 1 else made[0] if made else {}

    def _of_type(self, kind: str, given: Schema, at: str) -> Schema:
        own = {key: value for key, value in given.items() if key in TYPE_KEYWORDS[kind]}
        makers: dict[str, Callable[[Schema, str], Schema]] = {
            "object": self._object, "array": self._array, "string": self._string, "number": self._number,
            "integer": self._integer,
        }  # fmt: skip
        return {"type": kind, **(makers[kind](own, at) if kind in makers else {})}

    def _object(self, own: Schema, at: str) -> Schema:
        properties, required = own.get("properties", {}), own.get("required", [])
        if not isinstance(properties, dict):
            return self.refuse(f"{at}/properties")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            return self.refuse(f"{at}/required")
        other = "additionalProperties" if "additionalProperties" in own else "unevaluatedProperties"
        made = {name: self.schema(one, f"{at}/properties/{escaped(name)}") for name, one in properties.items()}
        for name in required:
            if name not in made:
                made[name] = self.schema(own.get(other, True), f"{at}/{other}")
        out: Schema = {**self._counts(own, at, "minProperties", "maxProperties")}
        if made:
            # A name may be written with escapes, which would let it pass as another one: there are no others.
            if "propertyNames" in own:
                self.refuse(f"{at}/propertyNames")
            return {**out, "properties": made, "required": required, "additionalProperties": False}
        if own.get("minProperties", 0) not in (0, 1):  # a name may come twice, and counts once
            self.refuse(f"{at}/minProperties")
        rest = own.get(other, True)
        if rest is False:
            return {**out, "additionalProperties": False}
        if "propertyNames" not in own:
            return {**out, "additionalProperties": True if rest is True else self.schema(rest, f"{at}/{other}")}
        if rest is not True:  # the library takes one of the two
            self.refuse(f"{at}/propertyNames")
        names = self.schema(own["propertyNames"], f"{at}/propertyNames")
        if names.get("type") != "string":
            self.refuse(f"{at}/propertyNames")
        return {**out, "propertyNames": names}

    def _array(self, own: Schema, at: str) -> Schema:
        first, other = own.get("prefixItems", []), "items" if "items" in own else "unevaluatedItems"
        if not isinstance(first, list):
            return self.refuse(f"{at}/prefixItems")
        out = self._counts(own, at, "minItems", "maxItems")
        if first:
            out["prefixItems"] = [self.schema(one, f"{at}/prefixItems/{index}") for index, one in enumerate(first)]
        rest = own.get(other, True)
        is_closed = rest is False or (bool(first) and other not in own and out.get("minItems", 0) <= len(first))
        out["items"] = False if is_closed else self.schema(rest, f"{at}/{other}")
        return out

    def _string(self, own: Schema, at: str) -> Schema:
        leader = next((key for key in ("format", "pattern") if key in own), None)
        if leader is None:
            counts = self._counts(own, at, "minLength", "maxLength")
            # The library's own lengths count control characters in, which no JSON string holds.
            return {"pattern": f".{{{counts.get('minLength', 0)},{counts.get('maxLength', '')}}}"} if counts else {}
        for key in own:
            if key != leader:
                self.refuse(f"{at}/{key}")
        value = own[leader]
        is_known = isinstance(value, str) and (
            value in FORMATS
            if leader == "format"
            else len(value) <= MAX_PATTERN and PLAIN_PATTERN.fullmatch(value) is not None
        )
        return {leader: value} if is_known else self.refuse(f"{at}/{leader}")

    def _number(self, own: Schema, at: str) -> Schema:
        if "multipleOf" in own:
            self.refuse(f"{at}/multipleOf")
        return {key: self._bound(own[key], f"{at}/{key}") for key in own if key != "multipleOf"}

    def _integer(self, own: Schema, at: str) -> Schema:
        bounds = {key: self._bound(own[key], f"{at}/{key}") for key in own if key != "multipleOf"}
        lower = [math.ceil(bounds[key]) for key in ("minimum",) if key in bounds]
        lower += [math.floor(bounds[key]) + 1 for key in ("exclusiveMinimum",) if key in bounds]
        upper = [math.floor(bounds[key]) for key in ("maximum",) if key in bounds]
        upper += [math.ceil(bounds[key]) - 1 for key in ("exclusiveMaximum",) if key in bounds]
        out: Schema = {**({"minimum": max(lower)} if lower else {}), **({"maximum": min(upper)} if upper else {})}
        if "multipleOf" in own:
            step = own["multipleOf"]
            is_whole = isinstance(step, int) and not isinstance(step, bool) and 0 < step <= MAX_MULTIPLE
            if out or not is_whole:  # the library forgets one of the two
                return self.refuse(f"{at}/multipleOf")
            out["multipleOf"] = step
        return out

    def _bound(self, value: Any, place: str) -> float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and abs(value) <= MAX_EXACT and round(value, MAX_DECIMALS) == value:
            return float(value) if isinstance(value, float) else value
        self.refuse(place)
        return 0

    def _counts(self, own: Schema, at: str, *keys: str) -> Schema:
        out: Schema = {}
        for key in keys:
            if key not in own:
                continue
            value = own[key]
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= MAX_COUNT or value != int(value):
                self.refuse(f"{at}/{key}")
            else:
                out[key] = int(value)
        return out


def _is_exact(value: Any) -> bool:
    """Whether the library writes a constant as it is."""
    if isinstance(value, dict):
        return all(map(_is_exact, value.values()))
    if isinstance(value, list):
        return all(map(_is_exact, value))
    return isinstance(value, (str, bool, type(None))) or abs(value) <= MAX_EXACT


def _is_of(value: Any, kind: Any) -> bool:
    if isinstance(value, bool):
        return bool(kind == "boolean")
    if isinstance(value, (int, float)):
        return bool(kind == "number" or (kind == "integer" and value == int(value)))
    kinds: dict[Any, type[Any]] = {"string": str, "null": type(None), "object": dict, "array": list}
    return kind in kinds and isinstance(value, kinds[kind])
