"""One short request to a started engine, up to its first token."""

from __future__ import annotations

import numpy as np

from tenon_core.engine.engine import Engine
from tenon_core.engine.messages import GenerateRequest
from tenon_core.sampling.params import SamplingParams

PROMPT_LEN = 8


def first_token(engine: Engine) -> None:
    """Step until a token comes, then to the end."""
    prompt = np.arange(1, 1 + PROMPT_LEN, dtype="<i4") % engine.facts.vocab_size
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=1, ignore_eos=True)
    engine.submit(GenerateRequest(id=1, prompt=prompt.astype("<i4").tobytes(), params=params))
    while engine.has_work():
        engine.step()
