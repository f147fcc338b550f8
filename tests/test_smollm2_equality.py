"""A real model's greedy tokens equal Transformers', which reads the same GGUF and dequantizes it to float32.

All prompts run together, so that the batch is ragged. The quick profile has two of them; `-m full` has all five on
every platform. The model is no wide checkpoint: near ties do occur, and the bound of `equality` alone says which.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from driver import drive, installed_platforms, request
from equality import Reference, assert_greedy_equal, hf_reference
from real_model import smollm2_path

from tenon_core.client.conversation import Conversation
from tenon_core.client.model_files import open_model_files
from tenon_core.client.templates import ChatTemplate
from tenon_core.config import EngineConfig
from tenon_core.engine.start import start_engine

__all__ = ["smollm2_path"]  # a fixture

pytestmark = pytest.mark.e2e
NEW_TOKENS = 100
QUESTIONS = (
    "What is the capital of France?",
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Explain to a child why the sky is blue.",
    "List three prime numbers greater than ten, and say of each why it is prime. Then add them up, step by step, and"
    " tell me whether the sum is even or odd.",
    "Hi!",
)
ANSWER = [504, 3575, 282, 4649, 314, 7042, 30, 2]  # "The capital of France is Paris." and the end of the turn
OPTIONS = {"cpu": ("cpu.gguf=dequantize", "cpu.weights=float32", "cpu.threads=1"), "reference": ()}  # all in float32


@pytest.fixture(scope="module")
def prompts(smollm2_path: Path) -> list[list[int]]:
    """The questions as the model's own template and tokenizer write them."""
    files = open_model_files(EngineConfig.from_flat(model=str(smollm2_path)))
    assert files.chat_template is not None
    chat = Conversation(tokenizer=files.tokenizer, template=ChatTemplate(source=files.chat_template))
    try:
        return [
            chat.encode([{"role": "user", "content": text}], add_generation_prompt=True, variables={})[1]
            for text in QUESTIONS
        ]
    finally:
        chat.close()


@pytest.fixture(scope="module")
def reference(smollm2_path: Path) -> Reference:
    """The same file as Transformers reads it, which parses it twice and makes its table of names once a module."""
    import gguf
    import torch
    from transformers import AutoModelForCausalLM

    with pytest.MonkeyPatch.context() as patch:
        for name in ("GGUFReader", "get_tensor_name_map"):
            patch.setattr(gguf, name, cache(getattr(gguf, name)))
        model = AutoModelForCausalLM.from_pretrained(
            str(smollm2_path.parent), gguf_file=smollm2_path.name, dtype=torch.float32, local_files_only=True
        )
    model.is_quantized = False  # it is not any more, and `.float()` need not refuse
    return hf_reference(model)


@pytest.mark.parametrize(
    ("platform", "count"),
    [
        pytest.param("cpu", 2, id="cpu-two"),
        pytest.param("cpu", len(QUESTIONS), id="cpu-all", marks=pytest.mark.full),
        pytest.param("reference", len(QUESTIONS), id="reference-all", marks=pytest.mark.full),
    ],
)
def test_greedy_tokens_equal_transformers(
    platform: str, count: int, smollm2_path: Path, prompts: list[list[int]], reference: Reference
) -> None:
    if platform not in installed_platforms((platform,)):
        pytest.skip(f"platform {platform} is not installed")
    chosen = prompts[:count]
    config = EngineConfig.from_flat(
        model=str(smollm2_path),
        platform=platform,
        platform_opt=OPTIONS[platform],
        dtype="float32",
        max_model_len=256,
        max_num_seqs=len(QUESTIONS),
        num_blocks=128,
    )
    engine = start_engine(config)
    try:
        outcome = drive(engine, [request(i, prompt, max_tokens=NEW_TOKENS) for i, prompt in enumerate(chosen)])
    finally:
        engine.shutdown()
    assert outcome.of(0)[: len(ANSWER)] == ANSWER
    ties = 0
    for i, prompt in enumerate(chosen):
        assert len(outcome.of(i)) == NEW_TOKENS
        ties += assert_greedy_equal(outcome.of(i), reference, prompt, label=f"SmolLM2 on {platform}, prompt {i}")
    assert ties <= count * NEW_TOKENS // 100, f"{ties} near ties decided otherwise: more than chance explains"
