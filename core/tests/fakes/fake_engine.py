"""`FakeEngine`: the engine's protocol without a model. Deterministic, so that front ends can be tested to the letter.

Token k of sample s is the prompt's token k (around and around) plus s: an echo. Everything else is as in the engine:
validation, limits, end and stop ids, n, log-probabilities, aborts, a queue that fills; a bad word's last token becomes
`!`, a thought's limit writes its end. A prompt that holds `POISON`
fails its step; one that holds `HANG` makes the loop hang, and one that begins with `SLOW` makes its first step take
`SLOW_SECONDS`; a docile one does nothing of the kind. A pooling model's vectors are made of its prompt's tokens.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from tenon_core.engine.messages import (
    EngineStats,
    Finished,
    FinishReason,
    GenerateRequest,
    KernelUse,
    Pooled,
    PromptInfo,
    StepUpdate,
    TokenLogprobs,
    sequence_key,
    split_key,
)
from tenon_core.sampling.pooling import PoolingFacts
from tenon_core.sampling.rules import BadWords, Thought
from tenon_core.sampling.validate import ModelFacts, validate_pooling, validate_request
from tenon_platforms.errors import CapacityError

EOS = 258
POISON, HANG, SLOW = 1, 2, 3  # token ids
SLOW_SECONDS = 4.0
VOCAB = 270  # the logits' width; wider than the tokenizer
FACTS = ModelFacts(
    model="fake",
    vocab_size=VOCAB,
    max_model_len=4096,
    eos_token_ids=(EOS,),
    max_num_seqs=64,
    max_prompt_batch=128,
    max_fan_out=256,
    num_blocks=1000,
    platform="fake",
)


def text_of(token: int) -> bytes:
    """The first 256 tokens are bytes."""
    return bytes([token]) if token < 256 else b""


@dataclass(slots=True)
class FakeSequence:
    request: GenerateRequest
    sample: int
    limit: int
    made: int = 0
    words: BadWords | None = None
    thought: Thought | None = None

    def __post_init__(self) -> None:
        params = self.request.params
        if params.bad_word_ids:
            self.words = BadWords(words=params.bad_word_ids)
        if params.thinking is not None:
            end = tuple(params.thinking.end.encode())
            is_open = params.thinking.is_open
            self.thought = Thought(limit=params.thinking, text=text_of, end=end, is_open=is_open)

    def ruled(self, token: int) -> int:
        """What comes in a token's place."""
        if self.words is not None:
            token = ord("!") if token in self.words.forbidden() else token
            self.words.advance(token)
        if self.thought is not None:
            if self.thought.is_spent:
                token = self.thought.end[self.thought.num_ended]
            self.thought.advance(token)
        return token

    @property
    def key(self) -> int:
        return sequence_key(self.request.id, self.sample)


@dataclass(slots=True, kw_only=True)
class FakeEngine:
    facts: ModelFacts = FACTS
    step_seconds: float = 0.0
    token_seconds: float = 0.0
    on_step: Callable[[int], None] = lambda num_tokens: None
    max_waiting: int = 64
    kernels: tuple[KernelUse, ...] = (KernelUse("attention", "echo", "fake", 2),)
    running: dict[int, FakeSequence] = field(default_factory=dict)
    new: list[GenerateRequest] = field(default_factory=list)
    submitted: list[GenerateRequest] = field(default_factory=list)
    ended: list[Finished] = field(default_factory=list)
    aborted_keys: list[int] = field(default_factory=list)
    num_steps: int = 0
    num_tokens: int = 0
    num_prompt: int = 0
    is_shut: bool = False
    is_docile: bool = False
    pooling: list[GenerateRequest] = field(default_factory=list)
    sleeping: Any = field(default_factory=lambda: SimpleNamespace(asleep=()))

    def submit(self, request: GenerateRequest) -> None:
        ids = request.prompt_token_ids
        if request.pooling is not None:
            validate_pooling(ids, request.pooling, self.facts)
            self.pooling.append(request)
            return
        total = validate_request(ids, request.params, self.facts)
        if len(self.running) >= self.max_waiting:
            raise CapacityError("the queue is full", remedy="try again later")
        assert request.params.seed is not None and request.params.max_tokens is not None
        for sample in range(request.params.n):
            sequence = FakeSequence(request, sample, total - len(ids))
            self.running[sequence.key] = sequence
        self.num_prompt += len(ids)
        self.new.append(request)
        self.submitted.append(request)

    @property
    def request_ids(self) -> tuple[int, ...]:
        return tuple({split_key(key)[0] for key in self.running})

    def abort(self, ids: Iterable[int] = (), keys: Iterable[int] = ()) -> None:
        self.pooling = [one for one in self.pooling if one.id not in set(ids)]
        wanted = {key for key in self.running if split_key(key)[0] in set(ids)} | (set(keys) & set(self.running))
        for key in sorted(wanted):
            del self.running[key]
            self.aborted_keys.append(key)
            self.ended.append(Finished(key=key, reason=FinishReason.ABORT))

    def reset_prefix_cache(self) -> None: ...

    def has_work(self) -> bool:
        return bool(self.running or self.ended or self.pooling)

    def loop(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def step(self) -> StepUpdate | None:
        if not self.has_work():
            return None
        new, self.new = self.new, []
        self.on_step(sum(len(one.prompt_token_ids) for one in new) or len(self.running))
        is_slow = not self.is_docile and any(one.prompt_token_ids[0] == SLOW for one in new)
        time.sleep(SLOW_SECONDS if is_slow else self.step_seconds)
        self.num_steps += 1
        finished, self.ended = self.ended, []
        prompts = tuple(self._prompt(one) for one in new)
        pooled = tuple(self._pooled(one) for one in self.pooling)
        self.pooling = []
        finished += [Finished(key=one.key, reason=FinishReason.STOP) for one in pooled]
        keys, tokens, logprobs = [], [], []
        for sequence in list(self.running.values()):
            ids = sequence.request.prompt_token_ids
            if HANG in ids and not self.is_docile:
                time.sleep(3600)
            if POISON in ids and not self.is_docile:
                finished.append(Finished(key=sequence.key, reason=FinishReason.ERROR, message="the step failed: /x.py"))
                del self.running[sequence.key]
                continue
            token = (int(ids[sequence.made % len(ids)]) + sequence.sample) % self.facts.vocab_size
            token = sequence.ruled(token)
            sequence.made += 1
            if sequence.request.params.logprobs is not None:
                logprobs.append((len(keys), self._logprobs(token, sequence.request.params.logprobs)))
            keys.append(sequence.key)
            tokens.append(token)
            end = self._end(sequence, token)
            if end is not None:
                finished.append(end)
                del self.running[sequence.key]
        self.num_tokens += len(keys)
        return StepUpdate(
            step=self.num_steps,
            keys=np.array(keys, dtype="<i8").tobytes(),
            tokens=np.array(tokens, dtype="<i4").tobytes(),
            logprobs=tuple(logprobs),
            finished=tuple(finished),
            prompts=prompts,
            pooled=pooled,
            stats=self.stats(),
        )

    def _end(self, sequence: FakeSequence, token: int) -> Finished | None:
        params = sequence.request.params
        is_stop = token in params.stop_token_ids or (token in self.facts.eos_token_ids and not params.ignore_eos)
        if is_stop and sequence.made >= params.min_tokens:
            return Finished(key=sequence.key, reason=FinishReason.STOP, stop_token=token)
        if sequence.made >= sequence.limit:
            return Finished(key=sequence.key, reason=FinishReason.LENGTH)
        return None

    def _logprobs(self, token: int, count: int) -> TokenLogprobs:
        top = tuple((token + place) % self.facts.vocab_size for place in range(count))
        return TokenLogprobs(token, -0.5, 1, top, tuple(-0.5 - place for place in range(count)))

    def _prompt(self, request: GenerateRequest) -> PromptInfo:
        count = request.params.prompt_logprobs
        logprobs = None
        if count is not None:
            rest = request.prompt_token_ids[1:].tolist()
            logprobs = (None, *(self._logprobs(token, count) for token in rest))
        return PromptInfo(key=sequence_key(request.id, 0), num_cached_tokens=0, logprobs=logprobs, queued_seconds=0.001)

    def _pooled(self, request: GenerateRequest) -> Pooled:
        assert request.pooling is not None and self.facts.pooling is not None
        ids = np.asarray(request.prompt_token_ids, dtype=np.float32)
        columns = np.arange(1, self.facts.pooling.width + 1, dtype=np.float32)
        rows = np.sin(ids[:, None] + columns)  # [tokens, width]
        if not request.pooling.per_token:
            rows = rows.mean(0, keepdims=True)
        return Pooled(key=sequence_key(request.id, 0), num_rows=len(rows), data=rows.astype("<f4").tobytes())

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self.running),
            num_waiting=0,
            num_blocks=self.facts.num_blocks,
            num_free_blocks=self.facts.num_blocks - len(self.running),
            num_steps=self.num_steps,
            num_preemptions=0,
            num_prompt_tokens=self.num_prompt,
            num_generated_tokens=self.num_tokens,
            num_prefix_queries=0,
            num_prefix_hits=0,
            num_compiles_after_ready=0,
        )

    def shutdown(self) -> None:
        self.is_shut = True


def from_environment() -> FakeEngine:
    """The engine of a fake process."""
    facts = msgspec.structs.replace(FACTS, max_model_len=int(os.environ.get("FAKE_MAX_MODEL_LEN", "4096")))
    if kind := os.environ.get("FAKE_POOLING"):
        head = PoolingFacts(kind=kind, width=8, pooling="mean", labels=tuple("abcdefgh"))
        facts = msgspec.structs.replace(facts, pooling=head)
    return FakeEngine(
        facts=facts,
        is_docile="FAKE_DOCILE" in os.environ,
        step_seconds=float(os.environ.get("FAKE_STEP_SECONDS", "0.002")),
        token_seconds=float(os.environ.get("FAKE_TOKEN_SECONDS", "0.0")),
        max_waiting=int(os.environ.get("FAKE_MAX_WAITING", "64")),
    )
