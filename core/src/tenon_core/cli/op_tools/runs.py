"""One greedy run of a model over an op table of the caller's: a start without a server, and prompts to their ends.

Beside the tokens it keeps how far the best token led the second best, which tells a fault from a near tie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tenon_core.client.model_files import open_model_files
from tenon_core.config import EngineConfig
from tenon_core.engine.assembly import Sockets
from tenon_core.engine.engine import Engine
from tenon_core.engine.messages import FinishReason, GenerateRequest, sequence_key, split_key
from tenon_core.engine.start import adjust, effective_dtypes, load, open_model, select_platform, warm_up
from tenon_core.sampling.params import SamplingParams
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError, DeviceError
from tenon_platforms.execution import ExecutableKind
from tenon_platforms.ops.table import OpTable

PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a lighthouse keeper who found a message in a bottle. He opened it and read:",
    "def fibonacci(n):\n    ",
)


@dataclass(slots=True, kw_only=True)
class Ran:
    """What came of a run. tokens: by prompt; leads: for each token, the best's log-probability less the second's."""

    platform: str
    dtype: DType
    kv_dtype: DType
    kind: ExecutableKind
    table: OpTable
    tokens: list[list[int]] = field(default_factory=list)
    leads: list[list[float]] = field(default_factory=list)


def encode(config: EngineConfig, texts: Sequence[str]) -> list[list[int]]:
    """Prompts as token ids. Raises `ConfigError` for one that has none."""
    files = open_model_files(config)
    prompts = [files.tokenizer.encode(text) for text in texts or PROMPTS]
    for text, ids in zip(texts, prompts, strict=False):
        if not ids:
            raise ConfigError(f"the prompt {text!r} has no tokens", remedy="give --prompt some text")
    return prompts


def run_greedy(
    config: EngineConfig,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    make_table: Callable[..., OpTable] = OpTable,
    on_ready: Callable[[Sockets], None] = lambda sockets: None,
    on_done: Callable[[Sockets], None] = lambda sockets: None,
) -> Ran:
    """Start, generate, shut down. on_ready: called between start-up and the first prompt; on_done: after the last.

    Raises `TenonError` as a start would, `DeviceError` where a step fails.
    """
    platform, _ = select_platform(config)
    sockets = Sockets.open(platform)
    opened = open_model(config)
    ledger, config = adjust(config, sockets, opened)
    dtype, kv_dtype = effective_dtypes(config, sockets.capabilities, opened, ledger)
    assembled = load(config, sockets, opened, dtype=dtype, kv_dtype=kv_dtype, make_table=make_table)
    engine = assembled.engine
    try:
        warm_up(assembled, sockets.device)
        on_ready(sockets)
        ran = Ran(
            platform=platform.name,
            dtype=dtype,
            kv_dtype=kv_dtype,
            kind=sockets.capabilities.executable,
            table=assembled.table,
        )
        _generate(engine, prompts, max_tokens, ran)
        on_done(sockets)
    finally:
        engine.shutdown()
    return ran


def _generate(engine: Engine, prompts: Sequence[Sequence[int]], max_tokens: int, ran: Ran) -> None:
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=max_tokens, ignore_eos=True, logprobs=2)
    for number, prompt in enumerate(prompts):
        ids = np.asarray(prompt, dtype="<i4").tobytes()
        engine.submit(GenerateRequest(id=number, prompt=ids, params=params))
        ran.tokens.append([])
        ran.leads.append([])
    while engine.has_work():
        update = engine.step()
        if update is None:
            continue
        keys = np.frombuffer(update.keys, np.int64).tolist()
        tokens = np.frombuffer(update.tokens, np.int32).tolist()
        for key, token in zip(keys, tokens, strict=True):
            ran.tokens[split_key(key)[0]].append(token)
        for place, found in update.logprobs:
            best, second = found.top_logprobs[:2]
            ran.leads[split_key(keys[place])[0]].append(best - second)
        for end in update.finished:
            if end.reason not in (FinishReason.LENGTH, FinishReason.STOP):
                number = next(n for n in range(len(prompts)) if sequence_key(n, 0) == end.key)
                raise DeviceError(
                    f"prompt {number} failed on platform {ran.platform!r}: {end.message or end.reason}",
                    remedy="mend that first: tokens can only be compared where there are some",
                )
