"""A scheduler, a block allocator and a model family from outside, come in through entry points and work end to end.

The examples in `tests/plugins_example` are laid into a temporary folder with metadata as an installer writes it. Then
an engine runs with them in an interpreter of its own, and its tokens equal Transformers'.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from architecture.clean_path import write_metadata
from architecture.sources import PACKAGES
from driver import prompts_of
from equality import Reference, assert_greedy_equal
from tiny_models import TinyModel

pytestmark = pytest.mark.e2e
TESTS = Path(__file__).resolve().parent.parent
EXAMPLES = TESTS / "plugins_example"
LENGTHS = (40, 3, 17, 90, 1)
TOY_NAMES = {
    "model.embed_tokens": "toy.words",
    "model.norm": "toy.last_norm",
    "lm_head": "toy.logits",
    "self_attn.q_proj": "query",
    "self_attn.k_proj": "key",
    "self_attn.v_proj": "value",
    "self_attn.o_proj": "mix",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
    "input_layernorm": "norm_1",
    "post_attention_layernorm": "norm_2",
    "model.layers.": "toy.",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the three examples installed."""
    folder = tmp_path_factory.mktemp("site")
    for example in sorted(one for one in EXAMPLES.iterdir() if (one / "pyproject.toml").exists()):
        shutil.copy(example / f"{example.name}.py", folder)
        write_metadata(folder, example / "pyproject.toml")
    return folder


@pytest.fixture(scope="module")
def toy(tiny_model: Callable[[str], TinyModel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama as a toy checkpoint: a configuration and tensor names that only the example family knows."""
    from safetensors.torch import save_file

    tiny, folder = tiny_model("llama"), tmp_path_factory.mktemp("toy")
    config = tiny.config
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["ToyForCausalLM"],
                "width": config["hidden_size"],
                "depth": config["num_hidden_layers"],
                "heads": config["num_attention_heads"],
                "kv_heads": config["num_key_value_heads"],
                "ffn": config["intermediate_size"],
                "vocabulary": config["vocab_size"],
                "eps": config["rms_norm_eps"],
                "theta": config["rope_parameters"]["rope_theta"],
            }
        )
    )
    tensors = {toy_name(name): tensor.contiguous() for name, tensor in tiny.model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def toy_name(name: str) -> str:
    """A Llama's tensor name as the toy has it."""
    for theirs, ours in TOY_NAMES.items():
        name = name.replace(theirs, ours)
    return name


def run(site: Path | None, checkpoint: Path, scheduler: str, allocator: str) -> subprocess.CompletedProcess[str]:
    """Generate in an interpreter that sees `site`."""
    folders = [*([site] if site else []), TESTS, *PACKAGES.values()]
    return subprocess.run(
        [sys.executable, str(TESTS / "compat" / "engine_with_plugins.py"), str(checkpoint), scheduler, allocator],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "OMP_NUM_THREADS": "2"},
        input=json.dumps(prompts_of(LENGTHS)),
        capture_output=True,
        text=True,
        timeout=180,
    )


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What the engine printed."""
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def test_all_three_work_together(site: Path, toy: Path, reference_of: Callable[[str], Reference]) -> None:
    found = answer(run(site, toy, "shortest-first", "rotating"))
    assert found["architecture"] == "ToyForCausalLM"
    for prompt, tokens in zip(prompts_of(LENGTHS), found["tokens"], strict=True):
        assert len(tokens) == 16
        assert_greedy_equal(tokens, reference_of("llama"), prompt, label="with plugins from outside")
    assert found["started"][: len(LENGTHS)] == sorted(found["started"][: len(LENGTHS)]), "not the shortest first"
    assert found["given"] > 0


@pytest.mark.parametrize(("scheduler", "allocator"), [("shortest-first", "default"), ("default", "rotating")])
def test_each_works_alone(
    site: Path,
    tiny_model: Callable[[str], TinyModel],
    reference_of: Callable[[str], Reference],
    scheduler: str,
    allocator: str,
) -> None:
    found = answer(run(site, tiny_model("llama").path, scheduler, allocator))
    assert ("started" in found, "given" in found) == (scheduler != "default", allocator != "default")
    for prompt, tokens in zip(prompts_of(LENGTHS), found["tokens"], strict=True):
        assert_greedy_equal(tokens, reference_of("llama"), prompt, label=f"{scheduler} and {allocator}")


def test_without_the_packages_the_names_are_refused(toy: Path, tiny_model: Callable[[str], TinyModel]) -> None:
    done = run(None, tiny_model("llama").path, "shortest-first", "default")
    assert done.returncode != 0
    assert "'shortest-first' is not registered in tenon.schedulers" in done.stderr
    done = run(None, toy, "default", "default")
    assert done.returncode != 0
    assert "architecture ToyForCausalLM is not supported" in done.stderr
