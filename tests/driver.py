"""Engines for tests: built from a checkpoint folder on a named platform, and driven to the end of their requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tenon_core.config import EngineConfig
from tenon_core.engine.assembly import Assembled, ModelSource, Sockets, assemble
from tenon_core.engine.engine import Engine
from tenon_core.engine.messages import (
    Finished,
    FinishReason,
    GenerateRequest,
    PromptInfo,
    StepUpdate,
    TokenLogprobs,
    sequence_key,
)
from tenon_core.models.registry import family_of
from tenon_core.sampling.params import SamplingParams
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.linear import Dense
from tenon_platforms.ops.weights import PartTensors
from tenon_platforms.torch_dtypes import from_torch

MAX_LEN = 512
STEP_LIMIT = 2_000  # a test that needs more is stuck


class StateDict:
    """A `WeightSource` over tensors in memory."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = tensors

    def names(self) -> Iterable[str]:
        return self._tensors.keys()

    def has(self, name: str) -> bool:
        return name in self._tensors

    def scheme(self, name: str) -> Dense:
        return Dense(stored=from_torch(self._tensors[name].dtype))

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def tensors(self, name: str) -> PartTensors:
        return {"weight": self._tensors[name]}


def model_source(path: Path, config: Mapping[str, Any], *, eos_token_ids: tuple[int, ...] = ()) -> ModelSource:
    """A saved checkpoint as the engine takes it."""
    from safetensors.torch import load_file

    family = family_of(config)
    tensors: dict[str, Any] = {}
    for file in sorted(path.glob("*.safetensors")):
        tensors.update(load_file(file))
    return ModelSource(
        name=path.name,
        spec=family.spec(config, MAX_LEN),
        names=family.weights,
        weights=StateDict(tensors),
        eos_token_ids=eos_token_ids,
    )


def build(
    source: ModelSource,
    platform: Any,
    *,
    dtype: DType = DType.FLOAT32,
    kv_dtype: DType | None = None,
    max_model_len: int = MAX_LEN,
    **flat: Any,
) -> Assembled:
    """An engine on `platform`. flat: fields of the engine's configuration; few rows unless said otherwise."""
    config = EngineConfig.from_flat(model=source.name, **{"max_num_seqs": 8, **flat})
    sockets, kv_dtype = Sockets.open(platform), kv_dtype or dtype
    return assemble(config, sockets, source, dtype=dtype, kv_dtype=kv_dtype, max_model_len=max_model_len)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of the requests, by sequence key; `of` takes a request's id."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    finished: dict[int, Finished] = field(default_factory=dict)
    prompts: dict[int, PromptInfo] = field(default_factory=dict)
    steps: int = 0

    def take(self, update: StepUpdate | None) -> None:
        """Take one update in, checking what every update must hold."""
        if update is None:
            return
        keys, tokens = np.frombuffer(update.keys, np.int64).tolist(), np.frombuffer(update.tokens, np.int32).tolist()
        assert len(keys) == len(tokens)
        for key, token in zip(keys, tokens, strict=True):
            assert key not in self.finished, f"sequence {key} got a token after its end"
            self.tokens.setdefault(key, []).append(token)
        for place, logprobs in update.logprobs:
            assert logprobs.token_id == tokens[place]
            self.logprobs.setdefault(keys[place], []).append(logprobs)
        for end in update.finished:
            assert end.key not in self.finished, f"sequence {end.key} ended twice"
            self.finished[end.key] = end
        for prompt in update.prompts:
            assert prompt.key not in self.prompts, f"the prompt of {prompt.key} was told twice"
            self.prompts[prompt.key] = prompt

    def of(self, request_id: int, sample: int = 0) -> list[int]:
        """Tokens of one sample of a request."""
        return self.tokens.get(sequence_key(request_id, sample), [])

    def reason(self, request_id: int, sample: int = 0) -> FinishReason:
        """Why it ended."""
        return FinishReason(self.finished[sequence_key(request_id, sample)].reason)


def request(
    request_id: int, prompt: Sequence[int], *, salt: str = "", priority: int = 0, **params: Any
) -> GenerateRequest:
    """A request; greedy, 32 tokens and no stop at end tokens unless said otherwise."""
    chosen = {"temperature": 0.0, "max_tokens": 32, "ignore_eos": True, "seed": request_id, **params}
    return GenerateRequest(
        id=request_id,
        prompt=np.array(prompt, dtype="<i4").tobytes(),
        params=SamplingParams(**chosen),
        cache_salt=salt,
        priority=priority,
    )


def drive(
    engine: Engine,
    requests: Iterable[GenerateRequest] = (),
    *,
    outcome: Outcome | None = None,
    on_step: Callable[[int, Outcome], None] | None = None,
) -> Outcome:
    """Submit requests and step until nothing is left, then check that rows and blocks add up.

    on_step(step, outcome so far) is called before every step; it may submit and abort.
    """
    outcome = Outcome() if outcome is None else outcome
    for one in requests:
        engine.submit(one)
    while engine.has_work():
        if on_step is not None:
            on_step(outcome.steps, outcome)
        outcome.take(engine.step())
        outcome.steps += 1
        assert outcome.steps < STEP_LIMIT, f"the engine is stuck: {engine.stats()}"
    engine.check_integrity()
    return outcome


def prompts_of(lengths: Sequence[int], *, seed: int = 0, vocab_size: int = 256) -> list[list[int]]:
    """Random prompts of these lengths."""
    random = np.random.default_rng(seed)
    return [random.integers(0, vocab_size, length).tolist() for length in lengths]


def installed_platforms(names: Sequence[str]) -> list[str]:
    """Those of `names` whose plugin is installed."""
    from tenon_platforms.manifest import read_manifests

    known = {manifest.name for manifest in read_manifests().valid}
    return [name for name in names if name in known]


def open_platform(name: str, **options: Any) -> Any:
    """A platform by name, made with options over the manifest's defaults, on one thread unless said otherwise."""
    from importlib import import_module

    from tenon_platforms.manifest import read_manifests

    manifest = next(one for one in read_manifests().valid if one.name == name)
    module, _, attribute = manifest.entry.partition(":")
    defaults = {option.key: option.default for option in manifest.options}
    if "threads" in defaults:
        defaults["threads"] = 1  # tiny models gain nothing from more
    return getattr(import_module(module), attribute)({**defaults, **options})
