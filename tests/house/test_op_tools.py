"""`tenon ops record`, the kit's replay of what it wrote, and `tenon ops bisect`, on a simulated platform with a fault.

The faulty platform is the simulated one with one more offer: linear layers, right but for those of one width.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from architecture.clean_path import write_metadata
from architecture.sources import ROOT
from served import make_tiny_folder
from tiny_models import TinyModel

pytestmark = pytest.mark.e2e
SIM = ROOT / "plugins" / "sim" / "src" / "tenon_sim" / "platform.toml"
FAULTY = '''
"""The simulated platform with linear layers of its own; those of WRONG inputs leave their last one out."""

import torch

from tenon_platforms.kernel import Kernel, No
from tenon_platforms.ops.linear import Dense, MergedLinearSpec
from tenon_platforms.ops.linear_reference import merged_linear
from tenon_sim.platform import SimPlatform

WRONG = 96


class FaultyPlatform(SimPlatform):
    name = "faulty"

    def register_ops(self, table, device):
        super().register_ops(table, device)
        table.offer(MergedLinearSpec, "faulty.linear", lambda spec: self._linear(spec, table))

    def _linear(self, spec, table):
        if not all(isinstance(scheme, Dense) for scheme in spec.schemes):
            return No("dense weights only")
        right = merged_linear(spec, table)

        def run(x, weights):
            if spec.in_features != WRONG:
                return right.run(x, weights)
            return right.run(torch.cat((x[:, :-1], x[:, -1:] * 0), dim=1), weights)

        return Kernel(name="faulty.linear", run=run, prepare=right.prepare)
'''
PYPROJECT = """
[project]
name = "tenon-faulty"
version = "0.1.0"
[project.entry-points."tenon.platforms"]
faulty = "tenon_faulty"
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The faulty platform, installed in a folder."""
    folder = tmp_path_factory.mktemp("faulty")
    package = folder / "tenon_faulty"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "platform.py").write_text(FAULTY)
    manifest = SIM.read_text().replace('"sim"', '"faulty"', 1)
    manifest = manifest.replace("tenon_sim.platform:SimPlatform", "tenon_faulty.platform:FaultyPlatform")
    (package / "platform.toml").write_text(manifest)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    write_metadata(folder, folder / "pyproject.toml")
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with a byte tokenizer; its down projection alone has 96 inputs."""
    return make_tiny_folder(tmp_path_factory.mktemp("checkpoint") / "tiny")


def python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the faulty platform installed."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *filter(None, sys.path)]), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=300)


def tenon(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One of our command lines."""
    return python(site, "-m", "tenon_core.cli.main", *arguments)


def replay(site: Path, platform: str, file: Path) -> subprocess.CompletedProcess[str]:
    """The kit's replay of a file."""
    plugins = ["-p", "tenon_plugin_sdk.conformance.plugin", "-p", "tenon_plugin_sdk.conformance.replay.plugin"]
    kit = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *plugins, "--rootdir", str(site), "-rf"]
    where = ["--pyargs", "tenon_plugin_sdk.conformance.replay"]
    return python(site, *kit, *where, "--platform", platform, "--replay", str(file))


@pytest.fixture(scope="module")
def recorded(site: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cases of a run on the reference platform."""
    file = tmp_path_factory.mktemp("recorded") / "cases.safetensors"
    done = tenon(site, "ops", "record", str(checkpoint), "--platform", "reference", "-o", str(file))
    assert done.returncode == 0, done.stderr
    assert "qk_norm_rope_kv_write" in done.stdout and "attention" in done.stdout
    return file


def test_what_was_recorded_passes_on_a_right_platform(site: Path, recorded: Path) -> None:
    done = replay(site, "sim", recorded)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout


def test_a_wrong_kernel_fails_where_it_is_wrong(site: Path, recorded: Path) -> None:
    done = replay(site, "faulty", recorded)
    assert done.returncode == 1, done.stdout[-4000:] + done.stderr[-2000:]
    failed = {line.split("[")[1].split("-")[0] for line in done.stdout.splitlines() if line.startswith("FAILED")}
    assert failed == {"merged_linear", "gated_mlp", "add_rms_norm_then"}
    assert "the formula allows" in done.stdout


def test_the_file_holds_no_code(recorded: Path) -> None:
    """A header of JSON and tensors behind it: nothing else is in the format."""
    data = recorded.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    cases = json.loads(header["__metadata__"]["tenon_op_cases"])
    assert cases["format"] == 1
    assert {entry["spec"]["spec"] for entry in cases["cases"]} >= {"RMSNormSpec", "AttentionSpec", "MergedLinearSpec"}


def test_another_file_is_refused(site: Path, tmp_path: Path) -> None:
    file = tmp_path / "other.safetensors"
    file.write_bytes(b"\x02\0\0\0\0\0\0\0{}")  # of tensors, but of no cases
    done = replay(site, "reference", file)
    assert done.returncode == 2, done.stdout
    assert "is a safetensors file without op cases" in done.stdout
    assert "remedy: tenon ops record MODEL" in done.stdout


def test_a_platform_that_compiles_is_told_what_to_do(site: Path, checkpoint: Path, tmp_path: Path) -> None:
    done = tenon(site, "ops", "record", str(checkpoint), "--platform", "sim", "-o", str(tmp_path / "cases"))
    assert done.returncode == 2
    assert "record with --platform reference" in done.stderr
    assert not (tmp_path / "cases").exists()


@pytest.mark.parametrize("character", ["dynamic", pytest.param("static", marks=pytest.mark.full)])
def test_the_wrong_op_and_its_spec_are_named(site: Path, checkpoint: Path, character: str) -> None:
    command = ["ops", "bisect", str(checkpoint), "--platform", "faulty", "--max-tokens", "12", "--json"]
    done = tenon(site, *command, "--platform-opt", f"faulty.character={character}", "-p", "Once upon a time", "-p", "x")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["cause"] == "ops"
    (culprit,) = found["culprits"]
    assert (culprit["op"], culprit["kernel"]) == ("merged_linear", "faulty.linear")
    assert "in_features=96" in culprit["spec"]
    assert found["mismatch"]["lead"] > 1e-3


def test_a_right_platform_is_not_accused(site: Path, checkpoint: Path) -> None:
    done = tenon(site, "ops", "bisect", str(checkpoint), "--platform", "sim", "-p", "Once upon a time")
    assert done.returncode == 0, done.stderr
    assert "there is nothing to find" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize("name", ["qwen2", "qwen3", "qwen3_moe", "gemma3"])
def test_every_kind_of_layer_is_recorded_and_replayed(
    site: Path, tiny_model: Callable[[str], TinyModel], checkpoint: Path, tmp_path: Path, name: str
) -> None:
    """Biases, norms of heads, experts, offsets and windows."""
    file = tmp_path / "cases.safetensors"
    tokenizer = ["--tokenizer", str(checkpoint)]
    model = str(tiny_model(name).path)
    prompts = ["-p", "a" * 40, "-p", "b"]
    done = tenon(site, "ops", "record", model, "--platform", "reference", "-o", str(file), *tokenizer, *prompts)
    assert done.returncode == 0, done.stderr
    done = replay(site, "sim", file)
    assert done.returncode == 0, done.stdout[-4000:]
