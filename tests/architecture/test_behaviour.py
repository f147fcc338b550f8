"""Architecture, sections 8.3, 8.5 and 8.6 in small: equal tokens, the static device under the same tests, no leaks.

The tests at length are in `tests/`; here every rule is run once on every installed platform and shown failing once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conftest import PLATFORMS
from driver import build, drive, installed_platforms, model_source, open_platform, prompts_of, request
from equality import Reference, assert_greedy_equal
from tiny_models import TinyModel

from tenon_core.engine.assembly import Assembled, Sockets
from tenon_platforms.execution import ExecutableKind

pytestmark = pytest.mark.e2e
LENGTHS = (1, 9, 40, 75)
NEW_TOKENS = 24
WAYS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "no overlap": {"overlap": False},
    "chunks of 16": {"max_num_batched_tokens": 16},
    "no prefix cache": {"enable_prefix_caching": False},
}


@pytest.mark.parametrize("way", WAYS)
def test_greedy_tokens_are_the_same_however_they_are_made(
    platform_name: str, way: str, build_tiny: Callable[..., Assembled], reference_of: Callable[[str], Reference]
) -> None:
    engine = build_tiny("llama", platform_name, **WAYS[way]).engine
    prompts = prompts_of(LENGTHS)
    outcome = drive(engine, [request(i, prompt, max_tokens=NEW_TOKENS) for i, prompt in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        assert_greedy_equal(outcome.of(i), reference_of("llama"), prompt, label=f"{way} on {platform_name}")


def test_a_wrong_model_is_found(
    tiny_model: Callable[[str], TinyModel], reference_of: Callable[[str], Reference]
) -> None:
    tiny = tiny_model("llama")
    source = model_source(tiny.path, tiny.config)
    norm = source.weights.tensors("model.norm.weight")["weight"]
    norm.fill_(1.0)  # as if the final norm had been forgotten
    prompt = prompts_of([40])[0]
    outcome = drive(build(source, open_platform("reference")).engine, [request(0, prompt, max_tokens=NEW_TOKENS)])
    with pytest.raises(AssertionError, match="the reference says"):
        assert_greedy_equal(outcome.of(0), reference_of("llama"), prompt)


def is_static_and_asynchronous(platform: Any, made: Assembled) -> bool:
    """Whether every step has a shape from a lattice, is compiled for it, and runs behind the host's back."""
    sockets = Sockets.open(platform)
    is_traced = sockets.capabilities.executable is ExecutableKind.TRACE
    return made.policy.strict and not made.policy.limits.mix and is_traced and sockets.device.is_async


def test_the_static_device_runs_the_same_tests(build_tiny: Callable[..., Assembled]) -> None:
    assert "sim" in PLATFORMS, "the tests that cross packages run on every platform of this list"
    assert "sim" in installed_platforms(PLATFORMS), "tenon-sim is not installed: the static device goes untested"
    assert is_static_and_asynchronous(open_platform("sim"), build_tiny("llama", "sim"))


def test_a_dynamic_device_is_no_substitute(build_tiny: Callable[..., Assembled]) -> None:
    assert not is_static_and_asynchronous(open_platform("reference"), build_tiny("llama", "reference"))


def test_blocks_add_up_after_aborts(platform_name: str, build_tiny: Callable[..., Assembled]) -> None:
    engine = build_tiny("llama", platform_name).engine
    requests = [request(i, prompt, max_tokens=64, n=1 + i % 2) for i, prompt in enumerate(prompts_of(LENGTHS * 2))]
    stop_at = {2: [0, 1], 5: [2, 7], 9: [3, 4, 5, 6]}
    drive(engine, requests, on_step=lambda step, so_far: engine.abort(stop_at.get(step, [])))
    engine.check_integrity()


def test_a_leaked_block_is_found(build_tiny: Callable[..., Assembled]) -> None:
    engine = build_tiny("llama", "reference").engine
    drive(engine, [request(0, [1, 2, 3], max_tokens=4)])
    (block,) = engine.memory.allocator.allocate(1)
    with pytest.raises(AssertionError, match="leaked"):
        engine.check_integrity()
    engine.memory.allocator.release([block])
    engine.check_integrity()


def test_a_leaked_row_is_found(build_tiny: Callable[..., Assembled]) -> None:
    engine = build_tiny("llama", "reference").engine
    engine.submit(request(0, [1, 2, 3], max_tokens=64))
    for _ in range(4):
        engine.step()
    owners = [row for row, owner in enumerate(engine.table.owners) if owner is not None]
    engine.table.owners[owners[0]] = None
    with pytest.raises(AssertionError):
        engine.check_integrity()
