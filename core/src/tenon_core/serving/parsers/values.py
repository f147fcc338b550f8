"""Values in a model's notation, copied as JSON while they come: JSON itself, Python's literals, Gemma's objects.

Nothing is evaluated: letters are read by a grammar and written anew, so the outcome is valid JSON whatever was read.
JSON: RFC 8259, and raw control characters in strings, which models write and which are escaped here. Python: the
literals of its reference, section "Atoms", without prefixes and triple quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from .reader import Emit, MalformedError, Reader, Steps, markers

MAX_DEPTH = 30  # what clients send back is read to 32
MAX_SCALAR = 512  # letters of a number or word
_SCALAR = re.compile(r"[A-Za-z0-9_.+-]+")
_KEY = re.compile(r"[^\s:,{}\[\]\"'<>]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_PLAIN = {quote: re.compile(rf"[^{quote}\\\x00-\x1f]+") for quote in "\"'"}
_HEX = re.compile(r"[0-9a-fA-F]+")
_HIGH, _LOW = re.compile(r"[dD][89abAB][0-9a-fA-F]{2}"), re.compile(r"[dD][c-fC-F][0-9a-fA-F]{2}")
_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_JSON_ESCAPES = {**{letter: f"\\{letter}" for letter in '"\\/bfnrt'}, "'": "'"}
_PYTHON_ESCAPES = {
    "\n": "", "\\": "\\\\", "'": "'", '"': '\\"', "a": "\\u0007", "b": "\\b", "f": "\\f", "n": "\\n", "r": "\\r",
    "t": "\\t", "v": "\\u000b", "0": "\\u0000",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """quotes: what begins a text -> what ends it; one letter each has escapes, longer ones have none.

    words: as written -> as JSON. opens: which brackets there are. escapes: letter after a backslash -> as JSON.
    """

    quotes: Mapping[str, str]
    words: Mapping[str, str]
    opens: str = "{["
    escapes: Mapping[str, str] = field(default_factory=lambda: _JSON_ESCAPES)
    keeps_unknown_escapes: bool = False
    has_bare_keys: bool = False
    has_trailing_commas: bool = False


_JSON_WORDS = {"true": "true", "false": "false", "null": "null"}
JSON = Dialect(quotes={'"': '"'}, words=_JSON_WORDS)
PYTHON = Dialect(
    quotes={'"': '"', "'": "'"},
    words={"True": "true", "False": "false", "None": "null", **_JSON_WORDS},
    opens="{[(",
    escapes=_PYTHON_ESCAPES,
    keeps_unknown_escapes=True,
    has_trailing_commas=True,
)


def gemma(quote: str) -> Dialect:
    """Gemma's notation: keys bare, texts between two `quote` marks."""
    return Dialect(quotes={quote: quote}, words=_JSON_WORDS, has_bare_keys=True)


def escaped(text: str) -> str:
    """A text as the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def value(reader: Reader, dialect: Dialect, emit: Emit, depth: int = 0) -> Steps[None]:
    """Read one value and write it as JSON. Raises `MalformedError`."""
    if depth > MAX_DEPTH:
        raise MalformedError
    yield from reader.space()
    quote = yield from reader.literal(*dialect.quotes)
    if quote:
        yield from _string(reader, dialect, emit, dialect.quotes[quote])
        return
    letter = yield from reader.peek()
    if letter and letter in dialect.opens:
        yield from container(reader, dialect, emit, depth)
        return
    word = yield from reader.whole_run(_SCALAR, MAX_SCALAR)
    known = dialect.words.get(word)
    if known is None and not _NUMBER.fullmatch(word):
        raise MalformedError
    emit(known or word)


def container(reader: Reader, dialect: Dialect, emit: Emit, depth: int = 0) -> Steps[None]:
    """Read a map or list, its bracket not read yet."""
    opening = yield from reader.peek()
    reader.skip(1)
    is_map, closer = opening == "{", _CLOSERS[opening]
    emit("{" if is_map else "[")
    is_first = True
    while True:
        yield from reader.space()
        if (is_first or dialect.has_trailing_commas) and (yield from reader.literal(closer)):
            break
        emit("" if is_first else ", ")
        if is_map:
            yield from _key(reader, dialect, emit)
        yield from value(reader, dialect, emit, depth + 1)
        yield from reader.space()
        found = yield from reader.literal(",", closer)
        if found == closer:
            break
        if not found:
            raise MalformedError
        is_first = False
    emit("}" if is_map else "]")


def _key(reader: Reader, dialect: Dialect, emit: Emit) -> Steps[None]:
    quote = yield from reader.literal(*dialect.quotes)
    if quote:
        yield from _string(reader, dialect, emit, dialect.quotes[quote])
    elif dialect.has_bare_keys:
        name = yield from reader.whole_run(_KEY, MAX_SCALAR)
        if not name:
            raise MalformedError
        emit(f'"{escaped(name)}"')
    else:
        raise MalformedError
    yield from colon(reader)
    emit(": ")


def colon(reader: Reader) -> Steps[None]:
    """Read what stands between key and value."""
    yield from reader.space()
    if not (yield from reader.literal(":")):
        raise MalformedError


def _string(reader: Reader, dialect: Dialect, emit: Emit, closing: str) -> Steps[None]:
    """Read a text, its opening quote read."""
    emit('"')
    if len(closing) > 1:
        if not (yield from reader.copy_until(markers(closing), lambda piece: emit(escaped(piece)))):
            raise MalformedError
        emit('"')
        return
    plain = _PLAIN[closing]
    while True:
        letter = yield from reader.peek()
        if not letter:
            raise MalformedError
        if letter == closing:
            reader.skip(1)
            break
        if letter == "\\":
            yield from _escape(reader, dialect, emit)
        elif letter < " ":
            reader.skip(1)
            emit(escaped(letter))
        else:
            emit(escaped(reader.run(plain)))
    emit('"')


def _escape(reader: Reader, dialect: Dialect, emit: Emit) -> Steps[None]:
    pair = yield from reader.ahead(2)
    letter = pair[1:]
    known = dialect.escapes.get(letter)
    length = {"u": 6, "x": 4}.get(letter, 0) if letter != "x" or dialect.keeps_unknown_escapes else 0
    if length:
        digits = (yield from reader.ahead(length))[2:]
        if len(digits) != length - 2 or not _HEX.fullmatch(digits):
            raise MalformedError
        reader.skip(length)
        yield from _code_unit(reader, digits.rjust(4, "0"), emit)
    elif known is not None:
        reader.skip(2)
        emit(known)
    elif dialect.keeps_unknown_escapes and letter:
        reader.skip(1)
        emit("\\\\")
    else:
        raise MalformedError


def _code_unit(reader: Reader, digits: str, emit: Emit) -> Steps[None]:
    """Write a UTF-16 unit whose escape was read; half of a surrogate pair, which is no character, is written U+FFFD."""
    if _HIGH.fullmatch(digits) and (yield from reader.ahead(2)) == "\\u":
        low = yield from reader.ahead(6)
        if _LOW.fullmatch(low[2:]):
            reader.skip(6)
            emit(f"\\u{digits}{low}")
            return
    is_half = _HIGH.fullmatch(digits) or _LOW.fullmatch(digits)
    emit("\\ufffd" if is_half else f"\\u{digits}")


def text_of(reader: Reader, dialect: Dialect = JSON) -> Steps[str]:
    """Read a text and return it. Raises `MalformedError`, also where another value comes."""
    yield from reader.space()
    quote = yield from reader.literal(*dialect.quotes)
    if not quote:
        raise MalformedError
    parts: list[str] = []
    yield from _string(reader, dialect, parts.append, dialect.quotes[quote])
    return str(json.loads("".join(parts)))


def as_json(text: str, dialect: Dialect) -> str | None:
    """A whole text that is one value, as JSON; None where it is none."""
    reader, parts = Reader(), list[str]()
    reader.feed(text)
    reader.is_ended = True
    try:
        for _ in _only_value(reader, dialect, parts.append):
            raise AssertionError("an ended reader never waits")
    except MalformedError:
        return None
    return "".join(parts)


def _only_value(reader: Reader, dialect: Dialect, emit: Emit) -> Steps[None]:
    yield from value(reader, dialect, emit)
    yield from reader.space()
    if (yield from reader.peek()):
        raise MalformedError
