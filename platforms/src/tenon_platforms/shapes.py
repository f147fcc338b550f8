"""The shape lattice: which sizes a step may have on a platform, and how a schedule is limited by it.

A step needs so many tokens, rows, logit rows, blocks; a `ShapePolicy` rounds that need up to a `ShapeKey` the platform
can run. The default policy is the identity (any size). Torch-free: keys are hashed, sent and printed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .errors import CapacityError


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingMode:
    """What the sampler must do for a batch, known on the host: the union over its rows.

    Nothing set: every row is greedy. num_logprobs: -1 none; 0 the chosen token's; k also the k best.
    """

    noise: bool = False
    filters: bool = False  # top-k, top-p, min-p
    penalties: bool = False
    edits: bool = False  # logit bias, allowed ids, ids banned up to a position
    grammar: bool = False
    num_logprobs: int = -1

    def union(self, other: SamplingMode) -> SamplingMode:
        """The least mode that does both."""
        return SamplingMode(
            noise=self.noise or other.noise,
            filters=self.filters or other.filters,
            penalties=self.penalties or other.penalties,
            edits=self.edits or other.edits,
            grammar=self.grammar or other.grammar,
            num_logprobs=max(self.num_logprobs, other.num_logprobs),
        )


GREEDY = SamplingMode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeKey:
    """One point of the lattice, and the need of a step before rounding.

    tokens, rows, logits: padded sizes of the step's axes. max_query: most tokens of one row. blocks: most blocks of
    one row. adapters: LoRA slots in use. mode: what the sampler does. static: every size is padded to the lattice, so
    an executable prepared for this key serves every step that rounds to it.
    """

    tokens: int
    rows: int
    logits: int
    max_query: int
    blocks: int
    mode: SamplingMode = GREEDY
    adapters: int = 0
    static: bool = False

    @property
    def is_decode(self) -> bool:
        """One token a row, as in a pure decode step."""
        return self.max_query == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleLimits:
    """What the platform lets a schedule contain.

    max_tokens, max_rows: of one step. mix: whether prefills and decodes share a step. max_prefills: prefill rows of one
    step. fixed_chunk: a prefill chunk is at most this long. chunking: whether prompts may be split at all.
    """

    max_tokens: int
    max_rows: int
    mix: bool = True
    max_prefills: int | None = None
    fixed_chunk: int | None = None
    chunking: bool = True


class ShapePolicy(ABC):
    """Rounds a step's need to a key. `limits` are final: the scheduler obeys them.

    strict: nothing outside the lattice may run, so core makes every tensor in its final size at the start.
    """

    limits: ScheduleLimits
    strict: bool = False

    @abstractmethod
    def key(self, need: ShapeKey) -> ShapeKey:
        """The key that serves `need`; raises `CapacityError` where the lattice ends below it."""

    def eager_keys(self) -> Iterator[ShapeKey]:
        """Keys to prepare before *ready*, largest first."""
        return iter(())

    def lazy_keys(self) -> Iterator[ShapeKey]:
        """Keys that may be prepared while serving; devices that compile have none."""
        return iter(())

    def typical_keys(self) -> Iterator[ShapeKey]:
        """Keys beside the eager ones that serving will have, one of a kind and not necessarily static: what they launch
        is compiled before *ready* where the executable can (`Executable.compile_ahead`). By default the lazy ones.
        """
        return self.lazy_keys()


@dataclass(slots=True, kw_only=True)
class DynamicShapes(ShapePolicy):
    """Any size: the identity."""

    limits: ScheduleLimits

    def key(self, need: ShapeKey) -> ShapeKey:
        return need


@dataclass(slots=True, kw_only=True)
class LatticeShapes(ShapePolicy):
    """Sizes from fixed ascending lists.

    decode_rows: row counts of decode steps. prefill: (tokens, rows) of steps with prefills; empty: such steps are not
    padded and run eagerly. blocks: ascending block counts; empty: not an axis. modes: sampler modes in ascending
    strength, the first that covers a step's is taken; empty: the step's own mode, prepared lazily when not `strict`.
    strict: nothing outside the lattice may run (devices that compile per shape).
    """

    limits: ScheduleLimits
    decode_rows: tuple[int, ...]
    prefill: tuple[tuple[int, int], ...] = ()
    blocks: tuple[int, ...] = ()
    modes: tuple[SamplingMode, ...] = ()
    strict: bool = False

    def key(self, need: ShapeKey) -> ShapeKey:
        if need.is_decode and need.logits <= need.rows and need.rows <= self.decode_rows[-1]:
            rows = _round_up(need.rows, self.decode_rows)
            return self._pad(need, tokens=rows, rows=rows, logits=rows)
        for tokens, rows in self.prefill:
            if need.tokens <= tokens and need.rows <= rows and need.logits <= tokens:
                key = self._pad(need, tokens=tokens, rows=rows, logits=rows if need.logits <= rows else tokens)
                return replace(key, max_query=tokens)
        tokens, rows = self.prefill[-1] if self.prefill else (0, 0)
        if need.tokens <= tokens and need.rows <= rows and need.logits <= self._most_logits:
            key = self._pad(need, tokens=tokens, rows=rows, logits=self._most_logits)
            return replace(key, max_query=tokens)
        if self.strict:
            raise CapacityError(
                f"a step of {need.tokens} tokens in {need.rows} rows lies outside this platform's shape lattice"
                f" (decode rows {self.decode_rows}, prefill {self.prefill})"
            )
        return need

    def eager_keys(self) -> Iterator[ShapeKey]:
        """Strict: every key there is. Else the greatest block count and, of prefills, one logit a row."""
        modes = self.modes or (GREEDY, SamplingMode(noise=True))
        sizes = self.blocks or (0,)
        rest = [(b, m) for b in (reversed(sizes) if self.strict else sizes[-1:]) for m in modes]
        for tokens, rows in sorted(self.prefill, reverse=True):
            counts = {rows}
            if self.strict:
                counts |= {tokens, self._most_logits} if (tokens, rows) == self.prefill[-1] else {tokens}
            for logits in sorted(counts, reverse=True):
                for blocks, mode in rest:
                    yield ShapeKey(
                        tokens=tokens, rows=rows, logits=logits, max_query=tokens, blocks=blocks, mode=mode, static=True
                    )
        for rows in reversed(self.decode_rows):
            for blocks, mode in rest:
                yield ShapeKey(tokens=rows, rows=rows, logits=rows, max_query=1, blocks=blocks, mode=mode, static=True)

    @property
    def _most_logits(self) -> int:
        """Of the largest prefill: every prompt token's log-probability, and samples born with the prompt's end."""
        return self.prefill[-1][0] + self.limits.max_rows if self.prefill else 0

    def _pad(self, need: ShapeKey, *, tokens: int, rows: int, logits: int) -> ShapeKey:
        mode = next((mode for mode in self.modes if mode.union(need.mode) == mode), need.mode)
        if self.strict and self.modes and mode not in self.modes:
            raise CapacityError(f"no sampler mode of this platform covers {need.mode}")
        blocks = _round_up(need.blocks, self.blocks) if self.blocks else 0
        return replace(need, tokens=tokens, rows=rows, logits=logits, mode=mode, blocks=blocks, static=True)


def _round_up(value: int, sizes: tuple[int, ...]) -> int:
    index = bisect_left(sizes, value)
    if index == len(sizes):
        raise CapacityError(f"{value} is above the largest size of this platform's lattice, {sizes[-1]}")
    return sizes[index]
