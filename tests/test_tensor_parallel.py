"""Ranks that share a model: the same tokens as one, started and ended in order, and lost ones are told."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
from driver import Outcome, drive, prompts_of, request
from equality import Reference, assert_greedy_equal
from served import LIMIT_S, serving
from tiny_models import TinyModel

from tenon_core import LLM, EngineConfig, InlineLink
from tenon_core.models.registry import family_of
from tenon_core.models.sharding import Rank, RankSource, rank_spec
from tenon_core.models.weights import DummySource
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError, DeviceError
from tenon_platforms.ops.linear import Dense, FP8Channel, GGUFBlocks, WeightScheme
from tenon_platforms.ops.quantized import FP8Block, IntGroups

pytestmark = pytest.mark.e2e
LENGTHS = (1, 9, 40, 100)
MODELS = ("llama-tied-biased-llama3", "gemma3", "qwen3_moe", "mixtral")
PLATFORMS: dict[str, tuple[str, ...]] = {
    "reference": (),
    "cpu": (),
    "sim": ("sim.devices=2", "sim.character=dynamic"),
}


@contextmanager
def running(path: Path, platform: str, size: int = 2, **flat: Any) -> Iterator[InlineLink]:
    """An engine of several ranks; none of its processes is left over."""
    values = {"dtype": "float32", "max_num_seqs": 8, "max_model_len": 256, "platform_opt": PLATFORMS[platform], **flat}
    config = EngineConfig.from_flat(model=str(path), platform=platform, tensor_parallel_size=size, **values)
    link = InlineLink.start(config)
    try:
        assert len(others()) == size - 1
        yield link
    finally:
        link.shutdown()
        assert not others()


def others() -> list[psutil.Process]:
    """The other ranks' processes."""
    children = psutil.Process().children(recursive=True)
    return [one for one in children if one.is_running() and "rank_process" in " ".join(one.cmdline())]


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("model", MODELS)
def test_ranks_give_the_tokens_of_one(
    model: str, platform: str, tiny_model: Callable[[str], TinyModel], reference_of: Callable[[str], Reference]
) -> None:
    prompts = prompts_of(LENGTHS)
    with running(tiny_model(model).path, platform) as link:
        outcome = drive(link.engine, [request(i, prompt) for i, prompt in enumerate(prompts)])
        link.check_integrity()
    for i, prompt in enumerate(prompts):
        assert_greedy_equal(outcome.of(i), reference_of(model), prompt, label=f"{model} on {platform}, prompt {i}")


@pytest.mark.parametrize("platform", ["reference", "cpu"])
def test_what_a_request_can_ask_is_the_same(
    platform: str, tiny_model: Callable[[str], TinyModel], reference_of: Callable[[str], Reference]
) -> None:
    path, prompts = tiny_model("llama").path, prompts_of((12, 30, 5))
    asked: list[dict[str, Any]] = [
        {"n": 3, "temperature": 4.0},
        {"beam_width": 2},
        {"temperature": 4.0, "top_k": 5, "presence_penalty": 1.0, "logprobs": 2},
        {"prompt_logprobs": 1},
    ]
    found: list[Outcome] = []
    for size in (1, 2):
        with running(path, platform, size, num_blocks=40) as link:  # few blocks: some are preempted
            many = [
                request(4 * place + kind, prompt, max_tokens=40, **params)
                for place, prompt in enumerate(prompts)
                for kind, params in enumerate(asked)
            ]
            found.append(drive(link.engine, many))
    assert found[0].tokens == found[1].tokens
    for key, first in found[0].logprobs.items():
        for one, other in zip(first, found[1].logprobs[key], strict=True):
            assert one.token_id == other.token_id and abs(one.logprob - other.logprob) < 1e-3


def test_grammars_are_the_first_rank_s_alone(tiny_folder: Path) -> None:
    from tenon_core import SamplingParams
    from tenon_core.sampling.structured import StructuredOutputs

    params = SamplingParams(temperature=1.0, max_tokens=30, structured_outputs=StructuredOutputs(regex="(ab|cd){3,5}"))
    texts = []
    for size in (1, 2):
        with LLM(str(tiny_folder), platform="cpu", tensor_parallel_size=size, num_blocks=64, seed=3) as llm:
            texts.append([one.outputs[0].text for one in llm.generate(["x", "yy"], params, use_tqdm=False)])
    assert texts[0] == texts[1]
    assert all(text and set(text) <= set("abcd") for text in texts[0])


def test_ranks_listen_on_this_host_alone(tiny_model: Callable[[str], TinyModel]) -> None:
    with running(tiny_model("llama").path, "cpu"):
        heard = [
            connection.laddr.ip
            for process in (psutil.Process(), *others())
            for connection in process.net_connections(kind="inet")
            if connection.status == psutil.CONN_LISTEN
        ]
    assert set(heard) <= {"127.0.0.1", "::1"}, heard


@pytest.mark.parametrize("platform", ["reference", "cpu"])
def test_a_rank_that_dies_ends_the_engine_with_a_word(platform: str, tiny_model: Callable[[str], TinyModel]) -> None:
    (prompt,) = prompts_of((5,))
    with running(tiny_model("llama").path, platform) as link:
        drive(link.engine, [request(0, prompt, max_tokens=4)])
        (rank,) = others()
        rank.kill()
        began = time.monotonic()
        with pytest.raises(DeviceError, match="rank"):
            drive(link.engine, [request(1, prompt, max_tokens=4)])
        assert time.monotonic() - began < 60


def test_a_server_starts_its_ranks_again(tiny_folder: Path, tmp_path: Path) -> None:
    flags = ("--platform", "cpu", "--tensor-parallel-size", "2", "--num-blocks", "64")
    body = {"prompt": "abc", "max_tokens": 8, "temperature": 0}
    process = None
    with serving(tiny_folder, tmp_path / "log", *flags) as served:

        def answer() -> str:
            found = httpx.post(f"{served.url}/v1/completions", json={**body, "model": served.model()}, timeout=LIMIT_S)
            text: str = found.json()["choices"][0]["text"]
            return text

        wanted = answer()
        process = psutil.Process(served.process.pid)
        ranks = [one for one in process.children(recursive=True) if "rank_process" in " ".join(one.cmdline())]
        assert len(ranks) == 1
        os.kill(ranks[0].pid, signal.SIGKILL)
        httpx.post(f"{served.url}/v1/completions", json={**body, "model": served.model()}, timeout=LIMIT_S)
        deadline = time.monotonic() + LIMIT_S
        while httpx.get(f"{served.url}/health", timeout=5).status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert answer() == wanted
        alive = process.children(recursive=True)
    _, left = psutil.wait_procs(alive, timeout=30)
    assert not left


@pytest.mark.parametrize(
    ("model", "flat", "said"),
    [
        ("llama", {"size": 3}, r"3, which does not divide the number of attention heads \(4\)"),
        ("llama", {"size": 4}, r"4, which does not divide the number of KV heads \(2\)"),
        ("llama", {"enable_sleep_mode": True}, "enable_sleep_mode is for one device"),
        ("llama", {"size": 4, "batch_invariant": True}, "batch_invariant with 4 ranks"),
        ("llama", {"size": 0}, "tensor_parallel_size is 0"),
        ("llama", {"size": 65}, "tensor_parallel_size is 65"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    model: str, flat: dict[str, Any], said: str, tiny_model: Callable[[str], TinyModel]
) -> None:
    with pytest.raises(ConfigError, match=said), running(tiny_model(model).path, "reference", **flat):
        pass
    assert not others()


def test_devices_that_are_not_there_are_told(tiny_model: Callable[[str], TinyModel]) -> None:
    path = tiny_model("llama").path
    with pytest.raises(ConfigError, match="there is no simulated device 1"):  # noqa: SIM117
        with running(path, "sim", platform_opt=("sim.devices=1",)):
            pass
    with pytest.raises(ConfigError, match="cannot be compiled"), running(path, "sim", platform_opt=("sim.devices=2",)):
        pass
    assert not others()


class Stored:
    """One weight, stored in some way."""

    def __init__(self, scheme: WeightScheme, tensors: dict[str, torch.Tensor], shape: tuple[int, ...]) -> None:
        self._scheme, self._tensors, self._shape = scheme, tensors, shape

    def names(self) -> list[str]:
        return ["w.weight"]

    def has(self, name: str) -> bool:
        return name == "w.weight"

    def scheme(self, name: str) -> WeightScheme:
        return self._scheme

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shape

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        return self._tensors


def numbered(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).view(shape)


SCHEMES: dict[str, tuple[WeightScheme, dict[str, torch.Tensor], tuple[int, ...]]] = {
    "dense": (Dense(stored=DType.FLOAT32), {"weight": numbered(8, 64)}, (8, 64)),
    "experts": (Dense(stored=DType.FLOAT32), {"weight": numbered(3, 8, 64)}, (3, 8, 64)),
    "gguf": (GGUFBlocks(type="Q8_0"), {"blocks": numbered(8, 68)}, (8, 64)),
    "fp8-channel": (FP8Channel(), {"weight": numbered(8, 64), "scale": numbered(8)}, (8, 64)),
    "fp8-block": (FP8Block(rows=4, columns=32), {"weight": numbered(8, 64), "scale": numbered(2, 2)}, (8, 64)),
    "int4": (
        IntGroups(bits=4, group_size=32, zeros=True),
        {"weight": numbered(8, 32), "scale": numbered(8, 2), "zero": numbered(8, 2)},
        (8, 64),
    ),
    "int8-row": (IntGroups(bits=8, group_size=0), {"weight": numbered(8, 64), "scale": numbered(8, 1)}, (8, 64)),
}
OF_ROWS = {"scale", "zero"}


@pytest.mark.parametrize("axis", [-2, -1], ids=["out", "in"])
@pytest.mark.parametrize("name", SCHEMES)
def test_slices_of_every_scheme_are_the_whole(name: str, axis: int) -> None:
    scheme, tensors, shape = SCHEMES[name]
    parts = []
    for index in range(2):
        source = RankSource(
            source=Stored(scheme, tensors, shape),
            rank=Rank(index=index, size=2),
            axes={"w.weight": axis},
            alone=frozenset(),
        )
        assert source.shape("w.weight")[axis] == shape[axis] // 2
        parts.append(source.tensors("w.weight"))
    for key, whole in tensors.items():
        halves = [part[key] for part in parts]
        if all(torch.equal(half, whole) for half in halves):
            assert key in OF_ROWS and axis == -1 and (whole.dim() == 1 or name == "int8-row"), (
                "a scale of a row is whole"
            )
            continue
        along = -1 if whole.dim() == 1 else axis
        assert torch.equal(torch.cat(halves, along), whole), key


def test_columns_that_are_no_whole_groups_are_refused() -> None:
    for scheme, tensors, shape in (
        (GGUFBlocks(type="Q8_0"), {"blocks": numbered(8, 34)}, (8, 32)),
        (IntGroups(bits=4, group_size=32, ordered=True), {"weight": numbered(8, 32)}, (8, 64)),
    ):
        source = RankSource(
            source=Stored(scheme, tensors, shape), rank=Rank(size=2), axes={"w.weight": -1}, alone=frozenset()
        )
        with pytest.raises(ConfigError, match=f"'w.weight' is stored as {scheme.id}, which 2 ranks cannot share"):
            source.tensors("w.weight")


@pytest.mark.parametrize("model", ["llama", "gemma3", "qwen3_moe"])
def test_ranks_hold_a_part_of_every_layer(model: str, tiny_model: Callable[[str], TinyModel]) -> None:
    config = tiny_model(model).config
    family = family_of(config)
    spec, names = family.spec(config, 128), family.names(config)
    whole = DummySource.for_model(spec, names, dtype=DType.FLOAT32)
    for index in range(2):
        rank = Rank(index=index, size=2)
        part = RankSource.of(whole, rank, spec, names)
        mine = DummySource.for_model(rank_spec(spec, rank), names, dtype=DType.FLOAT32)
        assert {name: part.shape(name) for name in part.names()} == mine.shapes
        assert all(part.tensors(name)["weight"].shape == shape for name, shape in mine.shapes.items())
