"""Engines for the levels that run whole models: started as an operator starts them, stepped by the check.

Only the core's public names are used. The engine selects the platform by its installed name, so a platform that was
made by hand has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .registry import ConformanceError, NotApplicableError

if TYPE_CHECKING:
    from tenon_core import EngineStats, GenerateRequest, InlineLink

    from .subject import Subject

SAMPLE_BITS = 16  # a key is request id << 16 | sample, as the core's messages say
STEP_LIMIT = 5_000  # a check that needs more is stuck
VOCAB = 256


@dataclass(slots=True, kw_only=True)
class Engine:
    """A running engine and what came out of it. tokens, reasons, cached: by (request id, sample)."""

    link: InlineLink
    tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    reasons: dict[tuple[int, int], str] = field(default_factory=dict)
    messages: dict[tuple[int, int], str] = field(default_factory=dict)
    cached: dict[tuple[int, int], int] = field(default_factory=dict)
    num_steps: int = 0

    def submit(self, request_id: int, prompt: Sequence[int], **params: Any) -> None:
        """Queue a request; greedy, 32 tokens and no stop at end tokens unless said otherwise."""
        self.link.submit(make_request(request_id, prompt, **params))

    def step(self) -> list[tuple[int, int]]:
        """One step; the sequences that got a token, one entry a token."""
        update = self.link.step()
        self.num_steps += 1
        if update is None:
            return []
        got = [_split(key) for key in np.frombuffer(update.keys, np.int64).tolist()]
        for sequence, token in zip(got, np.frombuffer(update.tokens, np.int32).tolist(), strict=True):
            if sequence in self.reasons:
                raise ConformanceError(f"request {sequence[0]} got a token after its end")
            self.tokens.setdefault(sequence, []).append(token)
        for end in update.finished:
            if _split(end.key) in self.reasons:
                raise ConformanceError(f"request {_split(end.key)[0]} ended twice")
            self.reasons[_split(end.key)] = _reason(end.reason)
            self.messages[_split(end.key)] = end.message
        for prompt in update.prompts:
            self.cached[_split(prompt.key)] = prompt.num_cached_tokens
        return got

    def run(self, before_step: Callable[[int], None] | None = None) -> None:
        """Step until nothing is left; rows and blocks must add up then. before_step: called with the step's number."""
        begin = self.num_steps
        while self.link.has_work():
            if before_step is not None:
                before_step(self.num_steps - begin)
            self.step()
            if self.num_steps - begin > STEP_LIMIT:
                raise ConformanceError(f"the engine is stuck after {STEP_LIMIT} steps: {self.stats}")
        self.check()

    def generate(self, prompts: Iterable[Sequence[int]], *, first_id: int = 0, **params: Any) -> list[list[int]]:
        """Run prompts together to their ends; their tokens. Raises `ConformanceError` where one fails."""
        ids = []
        for place, prompt in enumerate(prompts):
            ids.append(first_id + place)
            self.submit(ids[-1], prompt, **params)
        self.run()
        for one in ids:
            if self.reasons[one, 0] != "length":
                raise ConformanceError(f"request {one} ended with {self.reasons[one, 0]}: {self.messages[one, 0]}")
        return [self.tokens[one, 0] for one in ids]

    def check(self) -> None:
        """Rows and blocks add up; without work all are free."""
        try:
            self.link.check_integrity()
        except AssertionError as error:
            raise ConformanceError(f"after {self.num_steps} steps rows and blocks do not add up: {error}") from error

    def forget(self) -> None:
        """Drop what came out so far."""
        for held in (self.tokens, self.reasons, self.messages, self.cached):
            held.clear()

    @property
    def stats(self) -> EngineStats:
        """The engine's counters."""
        return self.link.stats()


@contextmanager
def running(subject: Subject, model: Path, **flat: Any) -> Iterator[Engine]:
    """An engine over a checkpoint on the subject's platform, shut down afterwards. flat: fields of `EngineConfig`.

    Float32, four rows and a context of 256 tokens unless said otherwise. Raises `NotApplicableError` for a platform
    that was made by hand.
    """
    from tenon_core import EngineConfig, InlineLink

    if subject.manifest is None:
        raise NotApplicableError("the engine selects platforms by name, and this one is not installed")
    options = tuple(f"{subject.name}.{key}={value}" for key, value in subject.texts.items())
    values = {"dtype": "float32", "max_num_seqs": 4, "max_model_len": 256, **flat}
    config = EngineConfig.from_flat(model=str(model), platform=subject.name, platform_opt=options, **values)
    link = InlineLink.start(config)
    try:
        yield Engine(link=link)
    finally:
        link.shutdown()


def make_request(request_id: int, prompt: Sequence[int], **params: Any) -> GenerateRequest:
    """A request as an engine takes it."""
    from tenon_core import GenerateRequest, SamplingParams

    salt = params.pop("salt", "")
    chosen = {"temperature": 0.0, "max_tokens": 32, "ignore_eos": True, "seed": request_id, **params}
    return GenerateRequest(
        id=request_id,
        prompt=np.array(prompt, dtype="<i4").tobytes(),
        params=SamplingParams(**chosen),
        cache_salt=salt,
    )


def prompts_of(lengths: Sequence[int], *, seed: int = 0) -> list[list[int]]:
    """Random prompts of these lengths."""
    random = np.random.default_rng(seed)
    return [random.integers(0, VOCAB, length).tolist() for length in lengths]


def _split(key: int) -> tuple[int, int]:
    return key >> SAMPLE_BITS, key & ((1 << SAMPLE_BITS) - 1)


def _reason(number: int) -> str:
    from tenon_core import FinishReason

    return FinishReason(number).text
