"""Grammars: from `StructuredOutputs` to matchers that say, token by token, what may come next.

A thin layer over llguidance (github.com/guidance-ai/llguidance): an Earley parser over lexemes that are matched by
derivatives, in linear time, with the work of every step bounded by `LIMITS`. A matcher is advanced by the tokens that
were chosen, and fills a row of the sampler's mask: bit v % 32 of word v / 32 set means that token v is allowed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, StructTag

from tenon_platforms.errors import RequestError

from .rules import ThinkingLimit, Thought
from .structured import PARAM, StructuredOutputs, refusal

LIMITS = LLParserLimits(  # a step at its limit takes some milliseconds
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=100_000,
    step_max_items=10_000,
    max_items_in_row=1_000,
    max_lexer_states=100_000,
    max_grammar_size=500_000,
)
ANY_OBJECT = '{"type": "object"}'
MAX_TAGS = 128
TAGS_SHAPE = '{"structures": [{"begin": TEXT, "schema": {...}, "end": TEXT}], "triggers": [TEXT]}'


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
    """The library's refusal in our words; keywords of a schema that are not supported are told with their paths."""
    if wanted.json is not None and (paths := unsupported(wanted.json, why)):
        return refusal(f"uses JSON schema keywords that are not supported: {', '.join(paths[:8])}")
    shown = " ".join(why.partition("<state>")[0].split())  # what follows is the parser's inside
    return refusal(f"{wanted.kind} is not usable: {shown[:400]}")


def unsupported(schema: str, why: str) -> list[str]:
    """JSON pointers of the keywords that a refusal names."""
    _, found, listed = why.partition("Unimplemented keys: ")
    if not found:
        return []
    try:
        names = set(json.loads(listed[: listed.index("]") + 1]))
    except ValueError:
        return []
    return [pointer for pointer, key in _keys(json.loads(schema), "") if key in names]


def _keys(value: Any, pointer: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            place = f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"
            yield place, key
            yield from _keys(inner, place)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _keys(inner, f"{pointer}/{index}")


def _json_grammar(schema: str, wanted: StructuredOutputs) -> str:
    options: dict[str, Any] = {"whitespace_flexible": not wanted.disable_any_whitespace}
    try:
        grammar: str = LLMatcher.grammar_from_json_schema(schema, overrides=options)  # type: ignore[arg-type]
    except ValueError as error:
        raise refusal(f"json is not usable: {str(error)[:200]}") from None
    return grammar


def _lark(text: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        lark: str = any_to_lark(text)
    except Exception as error:  # noqa: BLE001 - a converter in Python meets a stranger's text
        raise refusal(f"grammar is not usable: {' '.join(str(error).split())[:300]}") from None
    return lark


def _tags(text: str) -> str:
    """Free text with tagged parts: {"structures": [{"begin", "schema", "end"}], "triggers": [text]}."""
    try:
        value = json.loads(text)
        structures, triggers = value["structures"], value["triggers"]
        tags = [_tag(one, triggers) for one in structures]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise refusal(f"structural_tag must be {TAGS_SHAPE}") from None
    if not 0 < len(tags) <= MAX_TAGS:
        raise refusal(f"structural_tag has {len(tags)} structures: 1 to {MAX_TAGS} are allowed")
    grammar: str = StructTag.to_grammar(tags, assume_special=False)
    return grammar


def _tag(one: Any, triggers: Any) -> StructTag:
    begin, end, schema = one["begin"], one["end"], one.get("schema", {})
    trigger = next((text for text in triggers if isinstance(text, str) and text and begin.startswith(text)), None)
    if trigger is None:
        raise refusal(f"structural_tag has the begin {begin!r:.80}, which starts with none of its triggers")
    if not isinstance(end, str) or not isinstance(schema, dict):
        raise TypeError
    return StructTag(trigger=trigger, begin=begin, grammar=schema, end=end)


@dataclass(slots=True)
class Grammar:
    """One sequence's place in its grammar."""

    matcher: LLMatcher
    wanted: StructuredOutputs

    def fork(self) -> Grammar:
        """The same place, for another sample."""
        return Grammar(self.matcher.deep_copy(), self.wanted)

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


@dataclass(slots=True)
class Vocabulary:
    """The tokens as grammars see them. Making one takes a large vocabulary about half a second."""

    tokenizer: LLTokenizer
    size: int

    @classmethod
    def of(cls, tokenizer_json: str, size: int, eos_token_ids: Sequence[int]) -> Vocabulary:
        """tokenizer_json: as `tokenizers` writes it. size: width of the logits."""
        return cls(LLTokenizer(tokenizer_json, n_vocab=size, eos_token=list(eos_token_ids)), size)

    def compile(self, wanted: StructuredOutputs) -> Grammar:
        """A grammar at its start. Raises `RequestError`."""
        matcher = LLMatcher(self.tokenizer, source(wanted), limits=LIMITS, log_level=0)
        if matcher.is_error():
            raise explained(wanted, matcher.get_error())
        return Grammar(matcher, wanted)

    def thought(self, limit: ThinkingLimit) -> Thought:
        """A thought with a limit, at its start. Raises `RequestError` where the vocabulary cannot write its end."""
        end = tuple(self.tokenizer.tokenize_str(limit.end, parse_special=True))
        if not end:
            raise RequestError(f"no token writes {limit.end!r}", param="thinking_token_budget")
        return Thought(
            limit=limit, text=lambda token: bytes(self.tokenizer.decode_bytes([token])), end=end, is_open=limit.is_open
        )


__all__ = ["LIMITS", "PARAM", "Grammar", "Vocabulary", "check", "source", "unsupported"]
