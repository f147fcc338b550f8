"""GGUF files of every architecture against the Hugging Face checkpoints they were made of; whole models from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from driver import MAX_LEN, build, drive, installed_platforms, open_platform, prompts_of, request
from equality import Reference, assert_greedy_equal, assert_wide, hf_reference

from tenon_core.engine.assembly import ModelSource, Sockets
from tenon_core.engine.weight_source import CheckpointSource
from tenon_core.loading.checkpoint import open_checkpoint
from tenon_core.models.registry import family_of
from tenon_platforms.formats.gguf_reference import dequantize
from tenon_plugin_sdk.conformance.models.gguf_files import (
    TINY_GGUF,
    TinyGGUF,
    load_reference,
    make_folder,
    save_meant,
    write_gguf,
)

KINDS = ("F32", "F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
PLATFORMS = installed_platforms(("reference", "cpu"))
# the quick profile takes one platform: what a file means is read before any platform sees it
QUICK_PLATFORMS = [name if name == PLATFORMS[0] else pytest.param(name, marks=pytest.mark.full) for name in PLATFORMS]
EXACT = {"cpu": {"gguf": "dequantize"}}  # options under which a platform computes with the very weights a file means
SMALL = sorted(set(TINY_GGUF) - {"wide-llama"})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("hf")
    return {name: make_folder(name, folder) for name in TINY_GGUF}


def read(tiny: TinyGGUF) -> dict[str, torch.Tensor]:
    """Every tensor as our reader gives it, expanded to float32."""
    source = open_checkpoint(tiny.path).tensors
    result = {}
    for name in source.names():
        info, stored = source.info(name), source.read(name)
        if info.gguf_type is None:
            result[name] = stored.float()
        else:
            assert stored.dtype == torch.uint8 and info.scheme.id.startswith("gguf-") and info.dtype is None
            result[name] = dequantize(stored, info.gguf_type, torch.float32)
        assert tuple(result[name].shape) == info.shape
    return result


@pytest.mark.unit
@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_1"])
@pytest.mark.parametrize("name", SMALL)
def test_tensors_are_those_of_the_checkpoint(name: str, kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    tiny = write_gguf(folders[name], tmp_path / "m.gguf", kind=kind)
    found = read(tiny)
    assert found.keys() == tiny.tensors.keys()
    for key, values in tiny.tensors.items():
        assert torch.equal(found[key], torch.from_numpy(np.ascontiguousarray(values))), key


@pytest.mark.unit
@pytest.mark.parametrize("name", SMALL)
def test_the_configuration_makes_the_same_model(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """Both configurations, through the family, to one spec; but for what GGUF cannot tell apart or says in numbers."""
    tiny = write_gguf(folders[name], tmp_path / "m.gguf")
    opened = open_checkpoint(tiny.path)
    family = family_of(opened.config)
    ours, theirs = family.spec(opened.config, MAX_LEN), family_of(tiny.config).spec(tiny.config, MAX_LEN)
    if name == "mistral":
        assert ours.architecture == "LlamaForCausalLM"
    if name == "llama-llama3":
        assert ours.layers[0].mixer.rope.scaling.kind == "factors"
    if name not in ("mistral", "llama-llama3"):
        assert _rounded(ours) == _rounded(theirs)
    assert opened.format == "gguf" and opened.eos_token_ids == (2,)


def _rounded(value: Any) -> Any:
    """A spec as data; numbers as the float32 that GGUF stores."""
    import dataclasses

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _rounded(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [_rounded(one) for one in value]
    return float(np.float32(value)) if isinstance(value, float) else value


Meant = tuple[TinyGGUF, Reference]


@pytest.fixture(scope="module")
def meant(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Meant]:
    """meant(checkpoint, kind): a GGUF file, and Transformers on the weights that it means."""
    folder = tmp_path_factory.mktemp("gguf")

    @cache
    def make(name: str, kind: str) -> Meant:
        tiny = write_gguf(folders[name], folder / f"{name}-{kind}.gguf", kind=kind)
        return tiny, hf_reference(load_reference(save_meant(tiny, folder / f"{name}-{kind}")))

    return make


def assert_same_tokens(tiny: TinyGGUF, reference: Reference, platform_name: str) -> None:
    """Greedy tokens of an engine on the GGUF are those of Transformers on the weights it means."""
    prompts = prompts_of((1, 7, 60))
    assert_wide(reference, prompts[-1])
    opened = open_checkpoint(tiny.path)
    family, platform = family_of(opened.config), open_platform(platform_name, **EXACT.get(platform_name, {}))
    source = ModelSource(
        name="tiny",
        spec=family.spec(opened.config, MAX_LEN),
        names=family.weights,
        weights=CheckpointSource(opened.tensors, Sockets.open(platform).capabilities),
        eos_token_ids=opened.eos_token_ids,
    )
    outcome = drive(build(source, platform).engine, [request(i, one, max_tokens=16) for i, one in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        assert len(outcome.of(i)) == 16
        assert_greedy_equal(outcome.of(i), reference, prompt, label=f"{tiny.path.name} on {platform_name}, prompt {i}")


@pytest.mark.e2e
@pytest.mark.parametrize("platform_name", QUICK_PLATFORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_llama_of_every_kind(kind: str, platform_name: str, meant: Callable[[str, str], Meant]) -> None:
    checkpoint = "wide-llama" if kind.endswith("_K") else "llama"  # K-quants come in blocks of 256
    assert_same_tokens(*meant(checkpoint, kind), platform_name)


@pytest.mark.e2e
@pytest.mark.parametrize("platform_name", QUICK_PLATFORMS)
@pytest.mark.parametrize("name", sorted(set(SMALL) - {"llama"}))
def test_every_architecture(name: str, platform_name: str, meant: Callable[[str, str], Meant]) -> None:
    assert_same_tokens(*meant(name, "Q8_0"), platform_name)
