"""Grammars by XGrammar (github.com/mlc-ai/xgrammar): masks computed ahead for every state of a grammar's automaton.

Filling a mask costs some ten microseconds; compiling costs more than llguidance, and a worker does it first, within its
limits and over the same vocabulary. A step has no bound of its own, so only what keeps it small comes here: JSON
schemas as `xgrammar_schema.py` writes them, and structural tags of them. A stranger's expressions and grammars do not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .structured import StructuredOutputs, refusal
from .tags import as_format
from .well_formed import WellFormed, shown
from .xgrammar_library import Library, load
from .xgrammar_schema import translate

RAW = 0  # tokens are given as bytes
CACHE_BYTES = 64 * 2**20  # of compiled grammars
_PLACE = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ")  # what the library's errors begin with
ANY_OBJECT = '{"type": "object"}'


def grammar_of(library: Library, wanted: StructuredOutputs) -> Any:
    """The library's grammar. Raises `RequestError` that says what cannot be followed, and where."""
    spaces: dict[str, Any] = {"any_whitespace": not wanted.disable_any_whitespace}
    if wanted.disable_any_whitespace:
        spaces["separators"] = (",", ":")
    try:
        if wanted.structural_tag is not None:
            return library.grammar.from_structural_tag(as_format(wanted.structural_tag, translate))
        assert wanted.json is not None or wanted.json_object
        return library.grammar.from_json_schema(translate(wanted.json or ANY_OBJECT), **spaces)
    except (RuntimeError, ValueError) as error:
        raise refusal(f"{wanted.kind} is not usable: {_readable(error)}") from None


def _readable(error: Exception) -> str:
    return " ".join(_PLACE.split(str(error))[-1].split())[:300]


@dataclass(slots=True)
class XGrammarPlace:
    """One sequence's place in its grammar."""

    matcher: Any
    well_formed: WellFormed
    allowed: npt.NDArray[np.int32]  # a mask's row: whatever the grammar says, nothing else may follow

    def fork(self) -> XGrammarPlace:
        """The same place, for another sample."""
        return XGrammarPlace(self.matcher.fork(), self.well_formed, self.allowed)

    def advance(self, token: int) -> None:
        """Take a chosen token in. Raises `RequestError` where the grammar does not allow it."""
        if not self.matcher.accept_token(token, False):
            raise refusal("is not usable: no token is allowed")
        self.allowed = self.well_formed.following(token)

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return bool(self.matcher.is_terminated())

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        """Write the allowed tokens into a mask's row, int32 [ceil(vocab / 32)]. Raises `RequestError` for none."""
        self.matcher.fill_next_token_bitmask(row[None], 0, False)
        row &= self.allowed  # the library sets bits beyond the vocabulary, too
        if not row.any():
            raise refusal("is not usable: no token is allowed")


@dataclass(slots=True)
class XGrammarVocabulary:
    """The library over the tokens of one model."""

    library: Library
    compiler: Any
    well_formed: WellFormed

    @classmethod
    def of(cls, tokens: Sequence[bytes], eos_token_ids: Sequence[int]) -> XGrammarVocabulary:
        """tokens: the bytes of each, none for those that no text has. Raises `ConfigError` without the library."""
        library = load()
        info = library.core.TokenizerInfo(shown(tokens), RAW, len(tokens), list(eos_token_ids), False)
        compiler = library.core.GrammarCompiler(info, 1, True, CACHE_BYTES, False)
        return cls(library, compiler, WellFormed.of(tokens))

    def compile(self, wanted: StructuredOutputs) -> XGrammarPlace:
        """A grammar at its start. Raises `RequestError`."""
        grammar = grammar_of(self.library, wanted)
        try:
            compiled = self.compiler.compile_grammar_ebnf(grammar._handle)
            matcher = self.library.core.GrammarMatcher(compiled, None, False, -1, None)
        except (RuntimeError, ValueError) as error:
            raise refusal(f"{wanted.kind} is not usable: {_readable(error)}") from None
        return XGrammarPlace(matcher, self.well_formed, self.well_formed.every)
