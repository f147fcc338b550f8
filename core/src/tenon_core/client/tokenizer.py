"""`ClientTokenizer`: text to token ids and back, with control tokens kept out of what users write.

A prompt of the completions API may spell control tokens (users rely on it). In a chat only the template may: texts of
messages are *shielded* before rendering, so that a control token's text inside them stays text. Long texts are encoded
in a thread. Knows the `tokenizers` library, no model and no protocol.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tokenizers import Encoding, Tokenizer

from tenon_core.sampling.validate import ModelFacts, check_prompt_len
from tenon_platforms.errors import RequestError

from .token_floor import Measure, least_tokens, measure_of

LONG_TEXT = 2_000  # characters; shorter ones take less time than a thread's hand-over
VERY_LONG_TEXT = 65_536
LONG_IDS = 2_000  # tokens
T = TypeVar("T")
_OPEN, _CLOSE = "\ue0a1", "\ue0a2"  # private-use characters around a stand-in's name


@dataclass(slots=True, kw_only=True)
class Shield:
    """Stand-ins for control tokens' texts in one conversation; unguessable, so that no text can forge one."""

    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    texts: list[str] = field(default_factory=list)  # what each stand-in stands for

    def stand_in(self, text: str) -> str:
        """A stand-in for one more occurrence."""
        self.texts.append(text)
        return f"{_OPEN}{self.nonce}{len(self.texts) - 1:x}{_CLOSE}"

    def split(self, rendered: str) -> list[tuple[str, bool]]:
        """[(text, whether it was shielded)] of a rendered text, stand-ins replaced by what they stand for."""
        parts = re.split(f"{_OPEN}{self.nonce}([0-9a-f]+){_CLOSE}", rendered)
        pieces = [(part, False) for part in parts]
        for place in range(1, len(parts), 2):
            pieces[place] = (self.texts[int(parts[place], 16)], True)
        return [piece for piece in pieces if piece[0]]


@dataclass(slots=True, kw_only=True)
class ClientTokenizer:
    """A tokenizer as front ends use it. bos_token, eos_token: texts that templates may ask for."""

    backend: Tokenizer
    bos_token: str | None = None
    eos_token: str | None = None
    control_ids: frozenset[int] = field(init=False)
    _control_texts: re.Pattern[str] | None = field(init=False)
    _plain: Tokenizer | None = field(init=False, default=None)
    _patient: ThreadPoolExecutor = field(
        init=False, default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="long-texts")
    )
    _measure: tuple[Measure | None] | None = field(init=False, default=None)  # made for the first long text

    def __post_init__(self) -> None:
        self.backend.no_truncation()
        self.backend.no_padding()
        added = self.backend.get_added_tokens_decoder()
        control = {index: token.content for index, token in added.items() if token.special}
        self.control_ids = frozenset(control)
        self._control_texts = re.compile(trie_pattern(control.values())) if control else None

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def least_tokens(self, text: str, enough: int) -> int:
        """Tokens that a text has at the least, at a small part of what encoding costs; counted until beyond `enough`.

        0 for short texts, and where nothing is known of the tokenizer.
        """
        if len(text) < LONG_TEXT:
            return 0
        if self._measure is None:
            self._measure = (measure_of(self.backend),)
        return least_tokens(text, self._measure[0], enough)

    def check_length(self, text: str, facts: ModelFacts) -> None:
        """Raise `RequestError` for a text that has too many tokens for sure."""
        enough = min(facts.max_model_len, facts.max_prompt_len or facts.max_model_len)
        check_prompt_len(self.least_tokens(text, enough), facts, is_least=True)

    def encode(self, text: str, *, add_special_tokens: bool = True, facts: ModelFacts | None = None) -> list[int]:
        """Token ids; control tokens spelled in the text are parsed.

        facts: of the model that is to read all of it. Raises `RequestError` where it is no Unicode, or is known to be
        too long for that model before it is encoded.
        """
        check_text(text)
        if facts is not None:
            self.check_length(text, facts)
        return list(encoding_of(self.backend, text, add_special_tokens=add_special_tokens).ids)

    async def encode_async(
        self, text: str, *, add_special_tokens: bool = True, facts: ModelFacts | None = None
    ) -> list[int]:
        """The same without holding up the event loop."""
        if len(text) < LONG_TEXT:
            return self.encode(text, add_special_tokens=add_special_tokens, facts=facts)
        work = partial(self.encode, text, add_special_tokens=add_special_tokens, facts=facts)
        return await self.beside(work, num_unbounded=0 if facts is not None else len(text))

    async def beside(self, work: Callable[[], T], *, num_unbounded: int) -> T:
        """Do work on texts beside the event loop. num_unbounded: characters that no model's context bounds.

        Many of these take minutes, which nothing can stop: they have one thread, in turn, and leave the common ones to
        everybody else.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._patient if num_unbounded > VERY_LONG_TEXT else None, work)

    def shielded(self, value: Any, shield: Shield) -> Any:
        """A copy of a message or tool (text, list, map), stand-ins for control tokens' texts in it, in keys too."""
        if isinstance(value, str):
            check_text(value)
            if self._control_texts is None:
                return value
            return self._control_texts.sub(lambda match: shield.stand_in(match.group()), value)
        if isinstance(value, list):
            return [self.shielded(one, shield) for one in value]
        if isinstance(value, dict):
            return {self.shielded(key, shield): self.shielded(one, shield) for key, one in value.items()}
        return value

    def encode_rendered(self, rendered: str, shield: Shield) -> list[int]:
        """Token ids of a rendered chat: the template's control tokens are parsed, shielded ones are plain text."""
        check_text(rendered)
        ids: list[int] = []
        for text, is_plain in self._runs(shield.split(rendered)):
            ids += self._encode_plain(text) if is_plain else self.encode(text, add_special_tokens=False)
        return ids

    def _runs(self, pieces: Iterable[tuple[str, bool]]) -> list[tuple[str, bool]]:
        """Runs between the template's control tokens: (text, whether something in it was shielded).

        Runs border on control tokens, where a tokenizer splits a text anyway; so a shielded text is encoded with
        everything that surrounds it, as if control tokens did not exist.
        """
        runs: list[tuple[str, bool]] = []
        starts_new = True
        for text, was_shielded in pieces:
            parts = [text] if was_shielded or self._control_texts is None else _kept_split(self._control_texts, text)
            for place, part in enumerate(parts):
                if not part:
                    continue
                if place % 2:  # a control token of the template's
                    runs.append((part, False))
                    starts_new = True
                elif starts_new:
                    runs.append((part, was_shielded))
                    starts_new = False
                else:
                    runs[-1] = (runs[-1][0] + part, runs[-1][1] or was_shielded)
        return _merged(runs)

    def _encode_plain(self, text: str) -> list[int]:
        """Token ids of a text in which no control token is parsed."""
        if self._plain is None:
            plain = Tokenizer.from_str(self.backend.to_str())
            plain.encode_special_tokens = True
            self._plain = plain
        ids = list(encoding_of(self._plain, text, add_special_tokens=False).ids)
        if self.control_ids.isdisjoint(ids):
            return ids
        # The model's own merges reach a control token: letter by letter they cannot.
        ids = [index for letter in text for index in self._plain.encode(letter, add_special_tokens=False).ids]
        if not self.control_ids.isdisjoint(ids):
            raise RequestError("a message spells a control token that this tokenizer cannot write as plain text")
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; ids that the tokenizer does not know are nothing."""
        if len(ids) < LONG_IDS:
            return str(self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens))
        return str(self.backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)[0])


def encoding_of(
    backend: Tokenizer, text: str, second: str | None = None, *, add_special_tokens: bool = True
) -> Encoding:
    """The encoding of a text or of a pair.

    The library holds Python's lock while it encodes one text, and lets go of it for a batch: a thread that encodes a
    megabyte alone would stop every other one for seconds, the event loop too.
    """
    given = text if second is None else (text, second)
    if len(text) + len(second or "") < LONG_TEXT:
        return backend.encode(text, second, add_special_tokens=add_special_tokens)
    return backend.encode_batch([given], add_special_tokens=add_special_tokens)[0]


def check_text(text: str, *, param: str = "prompt") -> None:
    """Raise `RequestError` for half of a surrogate pair, which is no character."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text is not valid Unicode: a lone surrogate stands at character {error.start}", param=param
        ) from None


def trie_pattern(texts: Iterable[str]) -> str:
    """A regular expression for any of the texts, the longest first, that looks at each character once."""
    root: dict[str, Any] = {}
    for text in texts:
        node = root
        for letter in text:
            node = node.setdefault(letter, {})
        node[""] = {}
    return _trie(root)


def _trie(node: dict[str, Any]) -> str:
    chain = ""  # letters without a choice are written flat, so that long texts do not nest
    while len(node) == 1 and "" not in node:
        ((letter, node),) = node.items()
        chain += re.escape(letter)
    branches = [re.escape(letter) + _trie(rest) for letter, rest in node.items() if letter]
    if not branches:
        return chain
    return f"{chain}(?:{'|'.join(branches)}){'?' if '' in node else ''}"


def _kept_split(pattern: re.Pattern[str], text: str) -> list[str]:
    """[text, match, text, match, ..., text]."""
    parts, last = [], 0
    for match in pattern.finditer(text):
        parts += [text[last : match.start()], match.group()]
        last = match.end()
    return [*parts, text[last:]]


def _merged(runs: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Neighbouring runs without shielded text joined: they are encoded in one call, as the whole would be."""
    merged: list[tuple[str, bool]] = []
    for text, is_plain in runs:
        if merged and not is_plain and not merged[-1][1]:
            merged[-1] = (merged[-1][0] + text, False)
        else:
            merged.append((text, is_plain))
    return merged
