"""Grammars by llguidance (github.com/guidance-ai/llguidance): an Earley parser over lexemes that are matched by
derivatives, in linear time, with the work of every step bounded by `LIMITS`. Compiling is lazy, and takes no time.

Where a grammar leaves one text alone, the library would allow only the token by which the tokenizer goes on. That token
may be another text: a special token that the text spells, or one of the text as the tokenizer normalizes it. So nothing
is forced: the model writes such a text in any tokens that spell it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, StructTag

from tenon_platforms.errors import RequestError

from .schema_keywords import GUIDANCE, unfollowed
from .structured import StructuredOutputs, parsed, refusal
from .tags import is_nested, tags_of
from .xgrammar_library import REMEDY

LIMITS = LLParserLimits(  # a step at its limit takes some milliseconds
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=100_000,
    step_max_items=10_000,
    max_items_in_row=1_000,
    max_lexer_states=100_000,
    max_grammar_size=500_000,
)
ANY_OBJECT = '{"type": "object"}'
UNFORCED = '\n%llguidance {"no_forcing": true}'
_GBNF_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)  # Lark has no such sign


def source(wanted: StructuredOutputs) -> str:
    """The grammar as llguidance reads it, in Lark. Raises `RequestError` where the request is malformed."""
    return _stated(wanted) + UNFORCED


def _stated(wanted: StructuredOutputs) -> str:
    if wanted.json is not None:
        return _json_grammar(wanted.json, wanted)
    if wanted.json_object:
        return _json_grammar(ANY_OBJECT, wanted)
    if wanted.regex is not None:
        return _in_lark(LLMatcher.grammar_from_regex(wanted.regex))
    if wanted.choice is not None:
        return "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in wanted.choice)
    if wanted.grammar is not None:
        return _lark(wanted.grammar)
    assert wanted.structural_tag is not None
    return _tags(wanted.structural_tag)


def check(wanted: StructuredOutputs) -> None:
    """Compile and take the first step, over a vocabulary of bytes. Raises `RequestError` that says what is wrong, and
    where.
    """
    matcher = LLMatcher(LLTokenizer("byte"), source(wanted), limits=LIMITS, log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        raise explained(wanted, matcher.get_error())


def explained(wanted: StructuredOutputs, why: str) -> RequestError:
    """The library's refusal in our words."""
    shown = " ".join(why.partition("<state>")[0].split())  # what follows is the parser's inside
    return refusal(f"{wanted.kind} is not usable: {shown[:400]}")


def _json_grammar(schema: str, wanted: StructuredOutputs) -> str:
    if paths := unfollowed(parsed(schema), GUIDANCE):
        raise refusal(f"uses JSON schema keywords that are not supported: {', '.join(paths[:8])}")
    options: dict[str, Any] = {"whitespace_flexible": not wanted.disable_any_whitespace}
    try:
        made: str = LLMatcher.grammar_from_json_schema(schema, overrides=options)  # type: ignore[arg-type]
    except ValueError as error:
        raise refusal(f"json is not usable: {str(error)[:200]}") from None
    return _in_lark(made)


def _in_lark(made: str) -> str:
    """A grammar that the library made of a schema or an expression, which may be in its JSON form."""
    if not made.startswith("{"):
        return made
    (one,) = json.loads(made)["grammars"]
    lark: str | None = one.get("lark_grammar")
    return lark or f"start: %json {json.dumps(one['json_schema'])}"


def _lark(text: str) -> str:
    if text.lstrip().startswith("{"):
        raise refusal("grammar is JSON: send a grammar in GBNF or Lark, or a schema as structured_outputs.json")
    if _GBNF_RULE.search(text) is None:
        return text
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        lark: str = gbnf_to_lark(text)
    except Exception as error:  # noqa: BLE001 - a converter in Python meets a stranger's text
        raise refusal(f"grammar is not usable: {' '.join(str(error).split())[:300]}") from None
    return lark


def _tags(text: str) -> str:
    if is_nested(text):
        raise refusal(f"structural_tag has a format, which the backend xgrammar follows: {REMEDY}")
    tags = [StructTag(trigger=tag.trigger, begin=tag.begin, grammar=tag.schema, end=tag.end) for tag in tags_of(text)]
    grammar: str = StructTag.to_grammar(tags, assume_special=False)
    return grammar


@dataclass(frozen=True, slots=True)
class GuidancePlace:
    """One sequence's place in its grammar."""

    matcher: LLMatcher
    wanted: StructuredOutputs

    def fork(self) -> GuidancePlace:
        """The same place, for another sample."""
        return GuidancePlace(self.matcher.deep_copy(), self.wanted)

    def advance(self, token: int) -> None:
        """Take a chosen token in. Raises `RequestError` where the grammar does not allow it, or became too complex."""
        if not self.matcher.consume_token(token):
            raise explained(self.wanted, self.matcher.get_error() or "no token is allowed")

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return bool(self.matcher.is_stopped())

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        """Write the allowed tokens into a mask's row, int32 [ceil(vocab / 32)], C-contiguous.

        Raises `RequestError` where the grammar became too complex.
        """
        self.matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if self.matcher.is_error():
            raise explained(self.wanted, self.matcher.get_error())


def compiled(tokenizer: LLTokenizer, wanted: StructuredOutputs) -> GuidancePlace:
    """A grammar at its start. Raises `RequestError`."""
    matcher = LLMatcher(tokenizer, source(wanted), limits=LIMITS, log_level=0)
    if matcher.is_error():
        raise explained(wanted, matcher.get_error())
    return GuidancePlace(matcher, wanted)
