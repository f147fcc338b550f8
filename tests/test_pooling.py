"""Vectors and labels equal Transformers' arithmetic in float32, for ragged batches, on every platform.

The tolerance is stated once: 2e-5 of the largest value, some ten times what two orders of float32 summation differ by
in these models.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver import prompts_of
from tiny_pooling import TINY, TinyPooling, encoder_tokenizer, make_pooling

from tenon_core import LLM, PoolingParams
from tenon_platforms.errors import ConfigError, RequestError

pytestmark = pytest.mark.e2e
TOLERANCE = 2e-5
LENGTHS = (1, 2, 7, 33, 16, 90, 128)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyPooling]:
    folder = tmp_path_factory.mktemp("pooling")

    @cache
    def make(name: str) -> TinyPooling:
        return make_pooling(name, folder, tokenizer=encoder_tokenizer())

    return make


def open_llm(path: Path, platform: str, **flat: Any) -> LLM:
    flat = {"max_num_seqs": 4, "num_blocks": 200, **flat}
    return LLM(str(path), platform=platform, dtype="float32", **flat)


def assert_close(found: Any, expected: Any, label: str) -> None:
    found, expected = np.asarray(found, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    assert found.shape == expected.shape, label
    error = np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-6)
    assert error <= TOLERANCE, f"{label}: off by {error:.2e} of the largest value"


@pytest.mark.parametrize("name", sorted(TINY))
def test_vectors_equal_transformers(name: str, platform_name: str, tiny: Callable[[str], TinyPooling]) -> None:
    model, prompts = tiny(name), prompts_of(LENGTHS, vocab_size=256)
    prompts = [[token + 2 for token in prompt] for prompt in prompts]  # id 1 is RoBERTa's padding
    with open_llm(model.path, platform_name) as llm:
        raw = PoolingParams(use_activation=False) if "Classification" in TINY[name][0] else None
        for prompt, output in zip(prompts, llm.encode(prompts, raw, use_tqdm=False), strict=True):
            assert output.prompt_token_ids == prompt
            expected = model.expect(prompt)
            if name == "bert-bare":  # normalized unless the model says otherwise
                expected = expected / expected.norm()
            assert_close(output.outputs.data, expected, f"{name} on {platform_name}, {len(prompt)} tokens")


def test_tasks_of_an_embedder(tiny: Callable[[str], TinyPooling]) -> None:
    model, prompts = tiny("minilm"), prompts_of((5, 40, 90), vocab_size=255)
    with open_llm(model.path, "reference") as llm:
        whole = [np.array(one.outputs.embedding) for one in llm.embed(prompts, use_tqdm=False)]
        for prompt, vector in zip(prompts, whole, strict=True):
            assert_close(vector, model.expect(prompt), "embed")
        # matryoshka: cut, then normalized
        cut = llm.embed(prompts, pooling_params=PoolingParams(dimensions=16), use_tqdm=False)
        plain = llm.embed(prompts, pooling_params=PoolingParams(dimensions=16, normalize=False), use_tqdm=False)
        for vector, short, raw in zip(whole, cut, plain, strict=True):
            assert_close(short.outputs.embedding, vector[:16] / np.linalg.norm(vector[:16]), "cut")
            assert abs(np.linalg.norm(raw.outputs.embedding) - 1) > 1e-3
            assert_close(np.array(raw.outputs.embedding) / np.linalg.norm(raw.outputs.embedding),
                         short.outputs.embedding, "not normalized")  # fmt: skip
        # tokens' own vectors, in one batch with pooled ones: the mean of them is the pooled one
        mixed = [PoolingParams(task="token_embed", normalize=False), PoolingParams(normalize=False), PoolingParams()]
        tokens, pooled, unit = llm.encode([prompts[1]] * 3, mixed, use_tqdm=False)
        assert tokens.outputs.data.shape == (40, 64)
        assert_close(tokens.outputs.data.mean(0), pooled.outputs.data, "mean of tokens")
        assert_close(unit.outputs.data, whole[1], "normalized")
        # texts, and truncation that keeps the closing token
        text = llm.embed("hello", use_tqdm=False)[0]
        assert text.prompt_token_ids == [256, *b"hello", 257]
        short_text = llm.embed("x" * 500, pooling_params=PoolingParams(truncate_prompt_tokens=-1), use_tqdm=False)[0]
        assert len(short_text.prompt_token_ids) == 130 and short_text.prompt_token_ids[-1] == 257
        # similarity of pairs is the cosine
        scores = llm.score("hello", ["hello", "hell"], use_tqdm=False)
        other = np.array(llm.embed("hell", use_tqdm=False)[0].outputs.embedding)
        assert abs(scores[0].outputs.score - 1) < 1e-6
        assert abs(scores[1].outputs.score - float(np.dot(other, text.outputs.embedding))) < 1e-5


def test_refusals_of_an_embedder(tiny: Callable[[str], TinyPooling]) -> None:
    with open_llm(tiny("minilm").path, "reference") as llm:
        with pytest.raises(RequestError, match="generates nothing"):
            llm.generate("hello", use_tqdm=False)
        with pytest.raises(RequestError, match="dimensions is 65"):
            llm.embed("hello", pooling_params=PoolingParams(dimensions=65), use_tqdm=False)
        with pytest.raises(RequestError, match="this model does embed or token_embed"):
            llm.classify("hello", use_tqdm=False)
        with pytest.raises(RequestError, match="the model's context is 130"):
            llm.embed("x" * 500, use_tqdm=False)
        for ids in ([270], [-1], []):
            with pytest.raises(RequestError):
                llm.embed([ids], use_tqdm=False)
        assert llm.embed([[5] * 130], use_tqdm=False)[0].outputs.hidden_size == 64  # the whole context


def test_classes_and_pairs(platform_name: str, tiny: Callable[[str], TinyPooling]) -> None:
    import torch

    for name in ("bert-cross", "xlm-cross"):
        model = tiny(name)
        pairs = [("a question", "an answer"), ("a question", "another, longer answer")]
        with open_llm(model.path, platform_name) as llm:
            for (first, second), one in zip(
                pairs, llm.score("a question", [b for _, b in pairs], use_tqdm=False), strict=True
            ):
                ids = [256, *first.encode(), 257, *second.encode(), 257]
                start = len(first) + 2 if name == "bert-cross" else 0
                assert one.prompt_token_ids == ids
                expected = torch.sigmoid(model.expect(ids, start))[0]
                assert abs(one.outputs.score - float(expected)) < 1e-5, name


def test_labels(tiny: Callable[[str], TinyPooling]) -> None:
    import torch

    prompts = prompts_of((3, 60), vocab_size=255)
    for name in ("bert-labels", "qwen3-labels"):
        model = tiny(name)
        with open_llm(model.path, "reference") as llm:
            for prompt, one in zip(prompts, llm.classify(prompts, use_tqdm=False), strict=True):
                assert_close(one.outputs.probs, torch.softmax(model.expect(prompt), -1), name)
            with pytest.raises(RequestError, match="cannot score pairs"):
                llm.score("a", "b", use_tqdm=False)
    with open_llm(tiny("qwen3-labels").path, "reference") as llm:
        rewards = llm.reward(prompts, use_tqdm=False)
        for prompt, one in zip(prompts, rewards, strict=True):
            assert_close(one.outputs.data[-1], tiny("qwen3-labels").expect(prompt), "reward")
            assert one.outputs.data.shape == (len(prompt), 3)


def test_a_decoder_s_vectors_survive_chunks_and_cached_prefixes(tiny: Callable[[str], TinyPooling]) -> None:
    model, prompts = tiny("qwen3-embedding"), prompts_of((200, 90, 30, 7), vocab_size=255)
    prompts.append(prompts[0][:160] + [9] * 20)
    with open_llm(model.path, "reference", max_num_batched_tokens=32, block_size=16) as llm:
        for _ in range(2):
            outputs = llm.embed(prompts, use_tqdm=False)
            for prompt, one in zip(prompts, outputs, strict=True):
                assert_close(one.outputs.embedding, model.expect(prompt), "chunked")
        assert outputs[0].num_cached_tokens >= 160
        tokens = llm.encode(prompts[:2], pooling_task="token_embed", use_tqdm=False)
        assert [len(one.outputs.data) for one in tokens] == [200, 90]
        assert_close(tokens[0].outputs.data[-1], model.expect(prompts[0]), "the last token's")
        assert tokens[0].num_cached_tokens == 0


def test_a_generator_gives_vectors_where_it_is_asked_to(
    tmp_path: Path, tiny_model: Callable[[str], Any], tiny: Callable[[str], TinyPooling]
) -> None:
    import torch

    generator = tiny_model("qwen3")
    prompt = list(range(3, 40))
    (generator.path / "tokenizer.json").write_text((tiny("minilm").path / "tokenizer.json").read_text())
    with open_llm(generator.path, "reference") as llm, pytest.raises(RequestError, match="convert='embed'"):
        llm.embed([prompt], use_tqdm=False)
    with torch.no_grad():
        states = generator.model.model(input_ids=torch.tensor([prompt])).last_hidden_state[0]
    for flags, expected in (({}, states[-1]), ({"pooling": "mean"}, states.mean(0))):
        with open_llm(generator.path, "reference", runner="pooling", convert="embed", **flags) as llm:
            found = llm.embed([prompt], use_tqdm=False)[0].outputs.embedding
            assert_close(found, expected / expected.norm(), str(flags))
    with pytest.raises(ConfigError, match="cannot generate"):
        open_llm(tiny("minilm").path, "reference", runner="generate")


def test_long_prompts_need_one_step_where_tokens_see_later_ones(tiny: Callable[[str], TinyPooling]) -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens is 64"):
        open_llm(tiny("minilm").path, "reference", max_num_batched_tokens=64)
    with open_llm(tiny("minilm").path, "reference", max_num_batched_tokens=64, max_model_len=64) as llm:
        assert len(llm.embed(prompts_of((64, 50, 60)), use_tqdm=False)) == 3
