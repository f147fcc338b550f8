"""Grammars by llguidance (github.com/guidance-ai/llguidance): an Earley parser over lexemes that are matched by
derivatives, in linear time, with the work of every step bounded by `LIMITS`. Compiling is lazy, and takes no time.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
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
    """The grammar as llguidance reads it. Raises `RequestError` where the request is malformed."""
    if wanted.json is not None:
        return _json_grammar(wanted.json, wanted)
    if wanted.json_object:
        return _json_grammar(ANY_OBJECT, wanted)
    if wanted.regex is not None:
        grammar: str = LLMatcher.grammar_from_regex(wanted.regex)
        return grammar
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
        grammar: str = LLMatcher.grammar_from_json_schema(schema, overrides=options)  # type: ignore[arg-type]
    except ValueError as error:
        raise refusal(f"json is not usable: {str(error)[:200]}") from None
    return grammar


def unforced(grammar: str) -> str:
    """A grammar of `source` whose forced texts the model may write in any tokens, not only in the tokenizer's."""
    if grammar.startswith("{"):
        (one,) = json.loads(grammar)["grammars"]
        grammar = one["lark_grammar"] or f"start: %json {json.dumps(one['json_schema'], ensure_ascii=False)}"
    return grammar + UNFORCED


def _lark(text: str) -> str:
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


@dataclass(slots=True)
class GuidancePlace:
    """One sequence's place in its grammar.

    Where a grammar leaves one text alone, the library allows the token by which the tokenizer would go on. That token
    may be another text: a special token that the text spells, or one of the text as the tokenizer normalizes it. From
    the first such place on the grammar is `unforced`.
    """

    matcher: LLMatcher
    wanted: StructuredOutputs
    tokenizer: LLTokenizer
    taken: list[int] | None = field(default_factory=list)  # None: it is unforced

    def fork(self) -> GuidancePlace:
        """The same place, for another sample."""
        return replace(self, matcher=self.matcher.deep_copy(), taken=None if self.taken is None else list(self.taken))

    def advance(self, token: int) -> None:
        """Take a chosen token in. Raises `RequestError` where the grammar does not allow it, or became too complex."""
        if not self.matcher.consume_token(token):
            raise explained(self.wanted, self.matcher.get_error() or "no token is allowed")
        if self.taken is not None:
            self.taken.append(token)

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return bool(self.matcher.is_stopped())

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        """Write the allowed tokens into a mask's row, int32 [ceil(vocab / 32)], C-contiguous.

        Raises `RequestError` where the grammar became too complex.
        """
        self._write(row)
        if self.taken is None or (token := only_token(row)) is None or self.matcher.validate_tokens([token]):
            return
        self.matcher, taken = matcher_of(self.tokenizer, unforced(source(self.wanted)), self.wanted), self.taken
        self.taken = None
        if not self.matcher.consume_tokens(taken):
            raise explained(self.wanted, self.matcher.get_error())
        self._write(row)

    def _write(self, row: npt.NDArray[np.int32]) -> None:
        self.matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if self.matcher.is_error():
            raise explained(self.wanted, self.matcher.get_error())


def only_token(row: npt.NDArray[np.int32]) -> int | None:
    """The one token that a mask's row allows, None where there are more or none."""
    if np.count_nonzero(row) != 1:
        return None
    word = int(np.flatnonzero(row)[0])
    bits = int(row[word]) & 0xFFFFFFFF
    return None if bits & (bits - 1) else 32 * word + bits.bit_length() - 1


def matcher_of(tokenizer: LLTokenizer, grammar: str, wanted: StructuredOutputs) -> LLMatcher:
    """A matcher at its start. Raises `RequestError`."""
    matcher = LLMatcher(tokenizer, grammar, limits=LIMITS, log_level=0)
    if matcher.is_error():
        raise explained(wanted, matcher.get_error())
    return matcher


def compiled(tokenizer: LLTokenizer, wanted: StructuredOutputs) -> GuidancePlace:
    """A grammar at its start. Raises `RequestError`."""
    return GuidancePlace(matcher_of(tokenizer, source(wanted), wanted), wanted, tokenizer)
