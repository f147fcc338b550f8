"""What `tenon-sdk new` writes works at once: it installs, conforms to L0 and L1, and serves on reference kernels.

The plugin is installed for real, by pip from its sources, into a folder of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from architecture.sources import ROOT
from driver import prompts_of
from equality import Reference, assert_greedy_equal
from real_model import smollm2_path
from tiny_models import TinyModel

from tenon_plugin_sdk.scaffold.write import write_plugin

__all__ = ["smollm2_path"]  # a fixture

pytestmark = pytest.mark.e2e
SERVE = """
import json, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from driver import build, drive, model_source, open_platform, request
checkpoint = Path(sys.argv[1])
source = model_source(checkpoint, json.loads((checkpoint / "config.json").read_text()))
made = build(source, open_platform("acme"))
prompts = json.loads(sys.argv[3])
outcome = drive(made.engine, [request(i, prompt, max_tokens=16) for i, prompt in enumerate(prompts)])
print(json.dumps({
    "tokens": [outcome.of(i) for i in range(len(prompts))],
    "line": made.table.reference_line(),
    "refused": {choice.spec.op: dict(choice.refused) for choice in made.table.choices},
}))
"""


class Installed:
    """A scaffolded plugin and the folder it is installed in."""

    def __init__(self, folder: Path, site: Path) -> None:
        self.folder = folder
        self.site = site

    def run(self, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Python, with the plugin installed, in the plugin's folder."""
        search = os.pathsep.join([str(self.site), *filter(None, sys.path)])
        env = {**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, env=env, capture_output=True, text=True, timeout=timeout
        )


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Written and installed."""
    root = tmp_path_factory.mktemp("scaffold")
    _, folder, _ = write_plugin("acme", root / "tenon-acme")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--target", str(root / "site"), str(folder)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return Installed(folder, root / "site")


def test_it_conforms_to_packaging_and_device(acme: Installed) -> None:
    """Its own test file, in the folder it was written to."""
    kit = ["-m", "pytest", "-q", "-p", "tenon_plugin_sdk.conformance.plugin", "-p", "no:cacheprovider"]
    done = acme.run(*kit, "--level", "L1")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "acme conforms up to L1" in done.stdout
    assert "L0/requirements" not in done.stdout, "it was not installed as a distribution"


def test_it_serves_the_tiny_model_on_reference_kernels(
    acme: Installed, tiny_model: Callable[[str], TinyModel], reference_of: Callable[[str], Reference]
) -> None:
    prompts = prompts_of((1, 20, 60))
    done = acme.run("-c", SERVE, str(tiny_model("llama").path), str(ROOT / "tests"), json.dumps(prompts))
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    for prompt, tokens in zip(prompts, found["tokens"], strict=True):
        assert len(tokens) == 16
        assert_greedy_equal(tokens, reference_of("llama"), prompt, label="the scaffold")
    assert "rms_norm" in found["line"], "start-up does not say what is left to do"
    for op in ("rms_norm", "merged_linear", "attention"):
        (reason,) = found["refused"][op].values()
        assert "not written yet (" in reason


def test_the_doctor_and_the_list_of_ops_know_it(acme: Installed, tiny_folder: Path) -> None:
    done = acme.run("-m", "tenon_core.cli.main", "doctor", "--platform", "acme")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tenon-acme 0.1.0" in done.stdout
    done = acme.run("-m", "tenon_core.cli.main", "ops", str(tiny_folder), "--platform", "acme", "--json")
    assert done.returncode == 0, done.stderr
    assert "(ops/norm.py)" in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), "."],
        ["-m", "ruff", "format", "--check", "--config", str(ROOT / "pyproject.toml"), "."],
        ["-m", "mypy", "--strict", "--config-file", "", "-p", "tenon_acme"],
    ],
    ids=("lint", "format", "types"),
)
def test_its_code_is_in_order(acme: Installed, command: list[str]) -> None:
    done = acme.run(*command)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
def test_it_serves_smollm2(acme: Installed, smollm2_path: Path) -> None:
    """The real model: slow on reference kernels, and right."""
    question = ["-p", "What is the capital of France?", "--max-tokens", "12", "--max-model-len", "128"]
    done = acme.run(
        "-m", "tenon_core.cli.main", "chat", str(smollm2_path), "--platform", "acme", "--dtype", "float32", *question
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Paris" in done.stdout


@pytest.mark.full
def test_it_passes_the_ops_and_execution_levels(acme: Installed) -> None:
    """What it claims holds before a kernel is written."""
    kit = ["-m", "pytest", "-q", "-p", "tenon_plugin_sdk.conformance.plugin", "-p", "no:cacheprovider"]
    done = acme.run(*kit, "--level", "L2,L3", timeout=1200)
    assert done.returncode == 0, done.stdout[-4000:]
