"""Grammars and rules of running sequences: made off the loop, advanced by chosen tokens, asked for masks during a step.

    launch N+1   forward is queued -> follow(N) -> masks for N+1 -> sample is queued

Only rows that have one cost anything, and only a step that samples such a row is split in two. A request waits here,
not in the scheduler, until its grammar is compiled. The library and the vocabulary are loaded with the first grammar or
thought's limit that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from tenon_core.execution.results import LaunchedStep
from tenon_core.execution.runner import GrammarMasks
from tenon_core.sampling.params import SamplingParams
from tenon_core.sampling.rules import BadWords, Rule, bit
from tenon_core.sampling.structured import PARAM
from tenon_core.state.rows import RowTable
from tenon_platforms.errors import RequestError, TenonError

from .sequence import Sequence, SequenceState

if TYPE_CHECKING:
    from tenon_core.sampling.grammar import Grammar, Vocabulary

Int32 = npt.NDArray[np.int32]
ALL_ALLOWED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A sampled row that follows a grammar. place: among the step's sampled rows. is_early: it may not end yet."""

    place: int
    sequence: Sequence
    is_early: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Guides:
    """What one sequence follows. rules: narrow what the grammar allows. allowed: ids that the sampler keeps."""

    grammar: Grammar | None = None
    rules: tuple[Rule, ...] = ()
    allowed: Int32 | None = None

    def fork(self) -> Guides:
        """The same place, for another sample."""
        grammar = None if self.grammar is None else self.grammar.fork()
        return Guides(grammar=grammar, rules=tuple(rule.fork() for rule in self.rules), allowed=self.allowed)

    def advance(self, token: int) -> None:
        """Take a chosen token in. Raises `RequestError` where it was not allowed."""
        for rule in self.rules:
            rule.advance(token)
        if self.grammar is not None:
            self.grammar.advance(token)


class Followed(Protocol):
    """What is followed of a launched step."""

    handle: LaunchedStep
    constraints: tuple[Constraint, ...]
    is_followed: bool


@dataclass(slots=True, kw_only=True)
class Grammars:
    """load: makes the vocabulary; called once, in a thread. None: structured output is not to be had, for `why`."""

    table: RowTable
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    load: Callable[[], Vocabulary] | None
    why: str = "this model has no tokenizer"
    _vocabulary: Future[Vocabulary] | None = None
    _threads: ThreadPoolExecutor | None = None
    _compiling: dict[int, tuple[list[Sequence], Future[Guides]]] = field(default_factory=dict)  # by request id
    _guides: dict[int, Guides] = field(default_factory=dict)  # by sequence key
    _broken: dict[int, RequestError] = field(default_factory=dict)  # sequence key -> why it cannot go on

    # before a request runs

    @property
    def num_compiling(self) -> int:
        """Requests whose grammar is being compiled."""
        return len(self._compiling)

    def begin(self, samples: list[Sequence]) -> bool:
        """Make what a request's samples follow: at once, or in a thread where it needs the vocabulary.

        Returns whether it is made. Raises `RequestError` where there is no vocabulary.
        """
        params = samples[0].params
        if params.structured_outputs is None and params.thinking is None:
            self._give(samples, guides_of(params, None))
            return True
        if self.load is None:
            what = "structured output" if params.thinking is None else "a limit of thoughts"
            raise RequestError(f"{what} is not available: {self.why}", param=field_of(params))
        if self._threads is None:
            self._threads = ThreadPoolExecutor(2, thread_name_prefix="tenon-grammar")
            self._vocabulary = self._threads.submit(self.load)
        vocabulary = self._vocabulary
        assert vocabulary is not None
        future = self._threads.submit(lambda: guides_of(params, vocabulary.result()))
        self._compiling[samples[0].request.id] = (samples, future)
        return False

    def take_compiled(self, *, patience: float = 0.0) -> list[tuple[list[Sequence], RequestError | None]]:
        """Requests that are done compiling: (samples still wanted, what is wrong). patience: seconds to wait."""
        if patience and self._compiling:
            wait([future for _, future in self._compiling.values()], timeout=patience)
        done = [key for key, (_, future) in self._compiling.items() if future.done()]
        return [self._finished(*self._compiling.pop(key)) for key in done]

    def _finished(self, samples: list[Sequence], future: Future[Guides]) -> tuple[list[Sequence], RequestError | None]:
        wanted = [one for one in samples if one.state is not SequenceState.ENDED]
        name = field_of(samples[0].params)
        try:
            guides = future.result()
        except TenonError as error:
            return wanted, RequestError(error.message, param=name)
        except Exception as error:  # noqa: BLE001
            return wanted, _unusable(name, error)
        self._give(wanted, guides)
        return wanted, None

    def _give(self, samples: list[Sequence], guides: Guides) -> None:
        for index, one in enumerate(samples):
            self._guides[one.key] = guides.fork() if index else guides

    def drop_compiling(self, sequence: Sequence) -> bool:
        """A sample ends before its request runs; whether that was so."""
        if sequence.request.id not in self._compiling:
            return False
        sequence.state = SequenceState.ENDED
        return True

    # while it runs

    def constraints(self, sampled: Int32) -> tuple[Constraint, ...]:
        """Those of a step about to be launched that samples these rows; the table counts the step's tokens already."""
        table = self.table
        places = np.flatnonzero(table.has_grammar[sampled])
        return tuple(self._constraint(place, int(sampled[place])) for place in places.tolist())

    def _constraint(self, place: int, row: int) -> Constraint:
        sequence: Sequence = self.table.owners[row]
        num_before = int(self.table.num_tokens[row]) - 1 - sequence.num_prompt
        return Constraint(place=place, sequence=sequence, is_early=num_before < sequence.params.min_tokens)

    def masks(
        self, earlier: Iterable[Followed], constraints: tuple[Constraint, ...], num_sampled: int
    ) -> GrammarMasks | None:
        """What the runner asks once the forward pass is queued; None where no row follows a grammar."""
        if not constraints:
            return None
        flights = tuple(earlier)

        def fill() -> Int32:
            for flight in flights:
                self.follow(flight)
            mask = np.full((num_sampled, -(-self.vocab_size // 32)), ALL_ALLOWED, dtype=np.int32)
            for constraint in constraints:
                self._fill(mask[constraint.place], constraint)
            return mask

        return fill

    def follow(self, flight: Followed) -> None:
        """Give a step's tokens to the grammars, once. Waits for its result; raises what the step raised."""
        if flight.is_followed or not flight.constraints:
            return
        tokens = flight.handle.result().tokens[:, 0]
        flight.is_followed = True
        for constraint in flight.constraints:
            guides = self._guides.get(constraint.sequence.key)
            if guides is None:  # it has ended
                continue
            try:
                guides.advance(int(tokens[constraint.place]))
            except RequestError as error:
                self._broken.setdefault(constraint.sequence.key, error)  # the first reason is the cause
            except Exception as error:  # noqa: BLE001
                name = field_of(constraint.sequence.params)
                self._broken.setdefault(constraint.sequence.key, _unusable(name, error))

    def _fill(self, row: Int32, constraint: Constraint) -> None:
        key = constraint.sequence.key
        guides = self._guides.get(key)
        if guides is None or key in self._broken:
            return
        try:
            if guides.grammar is not None:
                self._fill_grammar(row, guides.grammar, constraint)
            for rule in guides.rules:
                rule.narrow(row)
        except RequestError as error:
            self._broken[key] = error
        except Exception as error:  # noqa: BLE001
            self._broken[key] = _unusable(field_of(constraint.sequence.params), error)
        if key in self._broken:
            row[:] = ALL_ALLOWED
            return
        if not row.any():
            name = "bad_words" if constraint.sequence.params.bad_words else "thinking_token_budget"
            self._broken[key] = RequestError(f"{name} forbids every token that {PARAM} allows next", param=name)
            row[:] = ALL_ALLOWED
        elif guides.grammar is not None and guides.allowed is not None and not _any(row, guides.allowed):
            self._broken[key] = RequestError(
                f"allowed_token_ids has no token that {PARAM} allows next: add those it needs, also an end token",
                param="allowed_token_ids",
            )

    def _fill_grammar(self, row: Int32, grammar: Grammar, constraint: Constraint) -> None:
        if grammar.is_complete:
            row[:] = 0
            for token in self.eos_token_ids:
                row[token // 32] |= bit(token)
            return
        grammar.fill(row)
        if constraint.is_early:
            self._forbid_ends(row, constraint.sequence)

    def _forbid_ends(self, row: Int32, sequence: Sequence) -> None:
        """Take the end tokens out of a mask, unless nothing else is left."""
        before = row.copy()
        for token in (*self.eos_token_ids, *sequence.params.stop_token_ids):
            row[token // 32] &= ~bit(token)
        if not row.any():
            row[:] = before

    def take_broken(self) -> list[tuple[int, RequestError]]:
        """(sequence key, why) of those that cannot go on."""
        broken, self._broken = list(self._broken.items()), {}
        return broken

    def forget(self, key: int) -> None:
        """A sequence has ended."""
        self._guides.pop(key, None)
        self._broken.pop(key, None)

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def guides_of(params: SamplingParams, vocabulary: Vocabulary | None) -> Guides:
    """What a sequence of these parameters follows, at its start. Raises `RequestError`."""
    rules: list[Rule] = []
    grammar = None
    if vocabulary is not None and params.structured_outputs is not None:
        grammar = vocabulary.compile(params.structured_outputs)
    if params.bad_word_ids:
        allowed = None if params.allowed_token_ids is None else frozenset(params.allowed_token_ids)
        rules.append(BadWords(words=params.bad_word_ids, allowed=allowed))
    if vocabulary is not None and params.thinking is not None:
        rules.append(vocabulary.thought(params.thinking))
    ids = None if params.allowed_token_ids is None else np.array(params.allowed_token_ids, np.int32)
    return Guides(grammar=grammar, rules=tuple(rules), allowed=ids)


def _any(row: Int32, ids: Int32) -> bool:
    """Whether a mask allows one of the tokens."""
    return bool(((row[ids // 32] >> (ids % 32)) & 1).any())


def field_of(params: SamplingParams) -> str:
    """The field that needs the vocabulary."""
    return PARAM if params.structured_outputs is not None else "thinking_token_budget"


def _unusable(name: str, error: Exception) -> RequestError:
    """What a library made of a stranger's grammar: it ends that request, and no other."""
    return RequestError(f"{name} is not usable: {type(error).__name__}", param=name)
