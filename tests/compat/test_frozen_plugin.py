"""A plugin written for contract 0.1 runs unchanged on today's core; what it never heard of goes to the reference.

The plugin is as it was: its digest is known here. Once the contract leaves its range, it must be refused by name.
"""

from __future__ import annotations

import hashlib
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
from architecture.sources import ROOT
from driver import prompts_of
from equality import Reference, assert_greedy_equal
from tiny_models import TinyModel

pytestmark = pytest.mark.e2e
HERE = Path(__file__).resolve().parent
PLUGIN = HERE / "plugin_0_1"
RANGE = ">=0.1,<0.2"
DIGEST = "592fcaaf8b36ee2525875e46cc1dbcc1b62ebf2331900c8637c3ecbc40dd69d7"
NORM = "    weight_offset: float = feature(0.0, "
FUTURE = '    future: int = feature(0, "rms_norm.future")\n'
CHOOSE = """
import json, sys
from tenon_frozen.platform import FrozenPlatform
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.norm import RMSNormSpec
from tenon_platforms.ops.table import OpTable

platform = FrozenPlatform()
table = OpTable(platform="frozen")
platform.register_ops(table, platform.device())
for future in (0, 1):
    table.choose(RMSNormSpec(hidden=8, eps=1e-5, dtype=DType.FLOAT32, future=future))
print(json.dumps({
    "sources": [choice.source for choice in table.choices],
    "refused": [list(choice.refused) for choice in table.choices],
    "line": table.reference_line(),
}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The frozen plugin, installed in a folder."""
    folder = tmp_path_factory.mktemp("frozen")
    shutil.copytree(PLUGIN / "tenon_frozen", folder / "tenon_frozen", ignore=shutil.ignore_patterns("__pycache__"))
    write_metadata(folder, PLUGIN / "pyproject.toml")
    return folder


def python(folders: list[Path], *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Python with these folders before everything."""
    search = os.pathsep.join([*map(str, folders), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], env=env, input=given, capture_output=True, text=True, timeout=300
    )


def in_range() -> bool:
    """Whether today's contract is one that the plugin was built for."""
    from tenon_platforms.manifest import accepts
    from tenon_platforms.version import contract_version_text

    return accepts(RANGE, contract_version_text())


def serve(site: Path, checkpoint: Path, prompts: list[list[int]]) -> tuple[dict[str, Any], str]:
    """What it says on standard output, and its log."""
    done = python([site, ROOT / "tests"], str(HERE / "frozen_run.py"), str(checkpoint), given=json.dumps(prompts))
    if not in_range():
        assert done.returncode != 0 and "is incompatible" in done.stderr
        pytest.skip("the contract has left the plugin's range, and the plugin is refused")
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found, done.stderr


def test_it_is_as_it_was() -> None:
    """Frozen means frozen: a change that would need an edit here is a MAJOR one."""
    files = sorted(file for file in PLUGIN.rglob("*") if file.is_file() and file.suffix in (".py", ".toml"))
    whole = hashlib.sha256()
    for file in files:
        whole.update(file.relative_to(PLUGIN).as_posix().encode() + b"\0" + file.read_bytes())
    assert whole.hexdigest() == DIGEST


def test_it_serves_on_todays_core(
    site: Path, tiny_model: Callable[[str], TinyModel], reference_of: Callable[[str], Reference]
) -> None:
    prompts = prompts_of((1, 17, 40))
    found, _ = serve(site, tiny_model("llama").path, prompts)
    for op in ("rms_norm", "merged_linear", "attention"):
        assert found["sources"][op] == "frozen", f"{op} is not served by the plugin any more"
    for prompt, tokens in zip(prompts, found["tokens"], strict=True):
        assert len(tokens) == 12
        assert_greedy_equal(tokens, reference_of("llama"), prompt, label="a plugin of contract 0.1")


def test_features_it_never_heard_of_go_to_the_reference(
    site: Path, tiny_model: Callable[[str], TinyModel], reference_of: Callable[[str], Reference]
) -> None:
    """Gemma's norms have an offset and its attention a window: the plugin lists neither, so start-up says so."""
    prompts = prompts_of((3, 30))
    found, log = serve(site, tiny_model("gemma3").path, prompts)
    line = next(text for text in log.splitlines() if "ops on the reference path" in text)
    assert "rms_norm" in line and "attention" in line and "merged_linear" not in line
    assert found["refused"]["rms_norm"] == {"frozen.rms_norm": "does not know the feature rms_norm.weight_offset"}
    assert found["sources"]["merged_linear"] == "frozen"
    for prompt, tokens in zip(prompts, found["tokens"], strict=True):
        assert_greedy_equal(tokens, reference_of("gemma3"), prompt, label="an old plugin beside the reference")


def test_a_feature_of_a_future_contract(site: Path, tmp_path: Path) -> None:
    """The contract as it will be: one more field with a feature. Its default is the plugin's, any other is not."""
    if not in_range():
        pytest.skip("the contract has left the plugin's range")
    source = ROOT / "platforms" / "src" / "tenon_platforms"
    future = tmp_path / "tenon_platforms"
    shutil.copytree(source, future, ignore=shutil.ignore_patterns("__pycache__"))
    norm = future / "ops" / "norm.py"
    text = norm.read_text()
    assert text.count(NORM) == 1
    norm.write_text(text.replace(NORM, FUTURE + NORM))
    done = python([tmp_path, site], "-c", CHOOSE)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["sources"] == ["frozen", "reference"]
    assert found["refused"] == [[], [["frozen.rms_norm", "does not know the feature rms_norm.future"]]]
    assert found["line"] == "1 of 1 ops on the reference path: rms_norm"
