"""A KV cache of float8_e4m3 under an engine: the tokens of Transformers whose keys and values are rounded so.

On the reference platform, on the simulated device and on the CUDA platform's execution with interpreted kernels. The
type is coarse enough that many tokens would be others over a float32 cache: rounded otherwise, copied by half or left
unwritten, it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from driver import build, drive, model_source, open_platform, prompts_of, request
from equality import Reference, assert_greedy_equal, cached_reference, sampled_reference
from tiny_models import TinyModel

from tenon_core.engine.assembly import Assembled
from tenon_core.engine.messages import sequence_key
from tenon_platforms.dtypes import DType

pytestmark = pytest.mark.e2e
FP8 = DType.FLOAT8_E4M3
INTERPRETED = "cuda, interpreted"
Tiny = Callable[[str], TinyModel]


@pytest.fixture(params=["reference", "sim", INTERPRETED])
def platform(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Made anew; the interpreter's one-byte floats are mended while it is used."""
    if request.param != INTERPRETED:
        yield open_platform(request.param)
        return
    pytest.importorskip("triton")
    from exact_float8 import exact_float8
    from interpreted_cuda import InterpretedKVWrites

    with exact_float8():
        yield InterpretedKVWrites()


@pytest.fixture(scope="module")
def reference(tiny_model: Tiny) -> Reference:
    return cached_reference(tiny_model("llama").model, FP8)


def made(tiny_model: Tiny, platform: Any, **flat: Any) -> Assembled:
    tiny = tiny_model("llama")
    source = model_source(Path(tiny.path), tiny.config)
    return build(source, platform, kv_dtype=FP8, **{"max_num_seqs": 3, "block_size": size_of(platform), **flat})


def size_of(platform: Any) -> int:
    """The platform's smallest block."""
    return 24 if platform.name == "sim" else 16


def test_chunks_and_prefix_hits(tiny_model: Tiny, platform: Any, reference: Reference) -> None:
    """Prompts in chunks beside decodes, of which the later ones begin with blocks that are there already."""
    size = size_of(platform)
    shared, *tails = prompts_of((2 * size + 2, 1, 17))
    engine = made(tiny_model, platform, max_num_batched_tokens=21, num_blocks=24).engine
    prompts = [shared, *(shared + tail for tail in tails)]
    outcome = drive(engine, [request(0, shared, max_tokens=4)])
    for i, prompt in enumerate(prompts[1:], 1):
        engine.submit(request(i, prompt, max_tokens=5))
    drive(engine, outcome=outcome)
    assert outcome.prompts[sequence_key(2, 0)].num_cached_tokens == 2 * size
    for i, prompt in enumerate(prompts):
        assert_greedy_equal(outcome.of(i), reference, prompt, label=f"prompt {i}")


def test_preempted_and_forked(tiny_model: Tiny, platform: Any, reference: Reference) -> None:
    """Samples part in a block, which is copied; there are too few blocks for all, so that one is computed again."""
    size = size_of(platform)
    prompts = prompts_of((size - 3, size - 2))
    engine = made(tiny_model, platform, num_blocks=6, enforce_eager=True).engine
    asked = [request(i, prompt, n=2 - i, max_tokens=8, temperature=1.0) for i, prompt in enumerate(prompts)]
    outcome = drive(engine, asked)
    assert engine.stats().num_preemptions > 0
    assert outcome.of(0, 0) != outcome.of(0, 1)
    for i, sample in ((0, 0), (0, 1), (1, 0)):
        noisy = sampled_reference(reference, seed=i, sample=sample, temperature=1.0)
        assert_greedy_equal(outcome.of(i, sample), noisy, prompts[i], label=f"prompt {i}, sample {sample}")


def test_tokens_over_another_cache_are_not_the_same(tiny_model: Tiny, reference: Reference) -> None:
    """What the tests above could tell apart."""
    tiny = tiny_model("llama")
    engine = build(model_source(Path(tiny.path), tiny.config), open_platform("reference")).engine
    (prompt,) = prompts_of((50,))
    outcome = drive(engine, [request(0, prompt)])
    with pytest.raises(AssertionError, match="the reference says"):
        assert_greedy_equal(outcome.of(0), reference, prompt)


def test_a_block_takes_a_byte_a_value(tiny_model: Tiny) -> None:
    """Four times the blocks of float32 in the same memory."""
    tiny = tiny_model("llama")
    source = model_source(Path(tiny.path), tiny.config)
    wide, narrow = (
        build(source, open_platform("reference"), kv_dtype=kv, kv_cache_memory=1 << 19, block_size=16).memory.num_blocks
        for kv in (DType.FLOAT32, FP8)
    )
    assert 4 * wide <= narrow < 4 * (wide + 1)
