"""A real model, from the package that carries it to its answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tenon_core.config import EngineConfig
from tenon_core.engine.messages import GenerateRequest
from tenon_core.engine.start import start_engine
from tenon_core.loading.checkpoint import open_checkpoint
from tenon_core.sampling.params import SamplingParams

pytestmark = pytest.mark.e2e
ANSWER = [504, 3575, 282, 4649, 314, 7042, 30, 2]  # "The capital of France is Paris." and the end of the turn


def test_the_capital_of_france(smollm2_path: Path) -> None:
    opened = open_checkpoint(smollm2_path)
    tokenizer = opened.load_tokenizer()
    assert opened.chat_template is not None
    prompt = (
        ImmutableSandboxedEnvironment()
        .from_string(opened.chat_template)
        .render(messages=[{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True)
    )
    ids = tokenizer.encode(prompt).ids
    engine = start_engine(
        EngineConfig.from_flat(
            model=str(smollm2_path), dtype="float32", max_model_len=256, max_num_seqs=2, num_blocks=64
        )
    )
    engine.submit(
        GenerateRequest(
            id=1,
            prompt=np.array(ids, dtype="<i4").tobytes(),
            params=SamplingParams(temperature=0.0, seed=0, max_tokens=20),
            cache_salt="",
        )
    )
    assert engine.token_seconds > 0, "the start did not measure a token"
    answer: list[int] = []
    while engine.has_work():
        update = engine.step()
        if update is not None:
            answer += np.frombuffer(update.tokens, np.int32).tolist()
    assert answer == ANSWER
    assert tokenizer.decode(answer) == "The capital of France is Paris."
