"""Grammars of running sequences: compiled off the loop, advanced by chosen tokens, asked for masks while a step runs.

    launch N+1   forward is queued -> follow(N) -> masks for N+1 -> sample is queued

Only rows that have a grammar cost anything, and only a step that samples such a row is split in two. A request waits
here, not in the scheduler, until its grammar is compiled. The library and the vocabulary are loaded with the first
grammar that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from tenon_core.execution.runner import GrammarMasks, LaunchedStep
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
    _compiling: dict[int, tuple[list[Sequence], Future[Grammar]]] = field(default_factory=dict)  # by request id
    _grammars: dict[int, Grammar] = field(default_factory=dict)  # by sequence key
    _broken: dict[int, str] = field(default_factory=dict)  # sequence key -> why it cannot go on

    # before a request runs

    @property
    def num_compiling(self) -> int:
        """Requests whose grammar is being compiled."""
        return len(self._compiling)

    def begin(self, samples: list[Sequence]) -> None:
        """Compile the grammar of a request's samples. Raises `RequestError` where there is no vocabulary."""
        if self.load is None:
            raise RequestError(f"structured output is not available: {self.why}", param=PARAM)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(2, thread_name_prefix="tenon-grammar")
            self._vocabulary = self._threads.submit(self.load)
        vocabulary, wanted = self._vocabulary, samples[0].params.structured_outputs
        assert vocabulary is not None and wanted is not None
        future = self._threads.submit(lambda: vocabulary.result().compile(wanted))
        self._compiling[samples[0].request.id] = (samples, future)

    def take_compiled(self, *, patience: float = 0.0) -> list[tuple[list[Sequence], str]]:
        """Requests that are done compiling: (samples still wanted, "" or what is wrong). patience: seconds to wait."""
        if patience and self._compiling:
            wait([future for _, future in self._compiling.values()], timeout=patience)
        done = [key for key, (_, future) in self._compiling.items() if future.done()]
        return [self._finished(*self._compiling.pop(key)) for key in done]

    def _finished(self, samples: list[Sequence], future: Future[Grammar]) -> tuple[list[Sequence], str]:
        wanted = [one for one in samples if one.state is not SequenceState.ENDED]
        try:
            grammar = future.result()
        except TenonError as error:
            return wanted, error.message
        except Exception as error:  # noqa: BLE001 - whatever a library makes of a stranger's grammar ends that request
            return wanted, f"{PARAM} is not usable: {type(error).__name__}"
        for index, one in enumerate(wanted):
            self._grammars[one.key] = grammar.fork() if index else grammar
        return wanted, ""

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
            grammar = self._grammars.get(constraint.sequence.key)
            if grammar is None:  # it has ended
                continue
            try:
                grammar.advance(int(tokens[constraint.place]))
            except RequestError as error:
                self._broken[constraint.sequence.key] = error.message

    def _fill(self, row: Int32, constraint: Constraint) -> None:
        key = constraint.sequence.key
        grammar = self._grammars.get(key)
        if grammar is None or key in self._broken:
            return
        if grammar.is_complete:
            row[:] = 0
            for token in self.eos_token_ids:
                _allow(row, token)
            return
        try:
            grammar.fill(row)
        except RequestError as error:
            self._broken[key] = error.message
            row[:] = ALL_ALLOWED
            return
        if constraint.is_early:
            self._forbid_ends(row, constraint.sequence)

    def _forbid_ends(self, row: Int32, sequence: Sequence) -> None:
        """Take the end tokens out of a mask, unless nothing else is left."""
        before = row.copy()
        for token in (*self.eos_token_ids, *sequence.params.stop_token_ids):
            row[token // 32] &= ~_bit(token)
        if not row.any():
            row[:] = before

    def take_broken(self) -> list[tuple[int, str]]:
        """(sequence key, why) of those that cannot go on."""
        broken, self._broken = list(self._broken.items()), {}
        return broken

    def forget(self, key: int) -> None:
        """A sequence has ended."""
        self._grammars.pop(key, None)
        self._broken.pop(key, None)

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _bit(token: int) -> np.int32:
    bit: np.int32 = np.uint32(1 << (token % 32)).view(np.int32)
    return bit


def _allow(row: Int32, token: int) -> None:
    row[token // 32] |= _bit(token)
