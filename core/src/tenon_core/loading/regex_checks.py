"""Regular expressions from files nobody vouches for: those that may backtrack without end, found by one linear scan.

Refused: a group repeated without end that inside repeats or chooses, and references to what a group matched. That is
more than strictly needed; the expressions of known tokenizers repeat single characters and classes only.
Source of the syntax: Oniguruma's RE document, which the tokenizers library follows.
"""

from __future__ import annotations

import re

MAX_CHARACTERS = 20_000
MAX_REPEAT = 1_000
_ENDLESS = 1 << 62
_COUNT = re.compile(r"\{(\d*)(,?)(\d*)\}")
_GROUP = re.compile(r"\((?:\?(?:[:=!>|~]|<[=!]|<\w{1,64}>|#[^)]*|[a-zA-Z-]{1,16}(?::|(?=\)))))?")


def why_heavy(expression: str) -> str | None:
    """What makes an expression heavy, as the end of "it ...", or None where it is fine."""
    if len(expression) > MAX_CHARACTERS:
        return f"has {len(expression)} characters"
    groups = [False]  # for each open group: whether something in it repeats or chooses
    closed = False  # whether the item just read is such a group
    at = 0
    while at < len(expression):
        letter = expression[at]
        if letter == "\\":
            if expression[at + 1 : at + 2] in tuple("123456789kg"):
                return "refers to what a group matched"
            at, closed = at + 2, False
        elif letter == "[":
            at, closed = _class_end(expression, at), False
        elif letter == "(":
            groups.append(False)
            at, closed = _group_start(expression, at), False
        elif letter == ")":
            closed = groups.pop() if len(groups) > 1 else False
            groups[-1] = groups[-1] or closed
            at += 1
        elif letter == "|":
            groups[-1], closed = True, False
            at += 1
        elif found := _quantifier(expression, at):
            end, most, exact = found
            if most > MAX_REPEAT and most != _ENDLESS:
                return f"repeats something {most} times"
            if closed and most > 1:
                return "repeats a group that itself repeats or chooses"
            groups[-1] = groups[-1] or not exact
            at = end  # `closed` stays: a further quantifier repeats the same group
        else:
            at, closed = at + 1, False
    return None


def _quantifier(expression: str, at: int) -> tuple[int, int, bool] | None:
    """(where it ends, the most repetitions, whether it is one count) of a quantifier at `at`, with its mark."""
    letter, exact = expression[at], False
    if letter in "*+?":
        end, most = at + 1, 1 if letter == "?" else _ENDLESS
    elif found := _COUNT.match(expression, at):
        low, comma, high = found.groups()
        if not low and not high:
            return None  # literal braces
        end, exact = found.end(), not comma
        most = int(high[:9] or 0) if high else _ENDLESS if comma else int(low[:9])
    else:
        return None
    if expression[end : end + 1] in ("?", "+"):
        end += 1
    return end, most, exact


def _class_end(expression: str, at: int) -> int:
    """Behind a character class, which may hold others."""
    depth = 0
    while at < len(expression):
        letter = expression[at]
        if letter == "\\":
            at += 1
        elif letter == "[":
            depth += 1
            at += expression[at + 1 : at + 2] == "^"
            at += expression[at + 1 : at + 2] == "]"  # a bracket that comes first is a character
        elif letter == "]":
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return at


def _group_start(expression: str, at: int) -> int:
    """Behind what opens a group: `(`, `(?:`, `(?i:`, `(?!`, `(?<name>` ..."""
    found = _GROUP.match(expression, at)
    return at + 1 if found is None else found.end()
