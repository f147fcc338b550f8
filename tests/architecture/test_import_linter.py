"""Architecture, section 8.1: the floors of the core, the packages' import rules and the absence of circles.

The contracts are in the root pyproject.toml (import-linter). Here they are run, and each is shown failing once on a
copy of our sources with one line added.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from architecture.sources import PACKAGES, ROOT

pytestmark = pytest.mark.unit


def lint(folders: list[Path], *contracts: str) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the packages in `folders`."""
    # An editable install with a finder of its own would find its package there, not in `folders`.
    code = (
        "import sys; sys.meta_path[:] = [one for one in sys.meta_path if not type(one).__module__.startswith('_edit')];"
        " from importlinter.cli import lint_imports_command as run; sys.argv[0] = 'lint-imports'; run()"
    )
    chosen = [word for name in contracts for word in ("--contract", name)]
    return subprocess.run(
        [sys.executable, "-c", code, "--config", str(ROOT / "pyproject.toml"), "--no-cache", *chosen],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of all our packages' sources, side by side."""
    folder = tmp_path_factory.mktemp("copied")
    for package, source in PACKAGES.items():
        shutil.copytree(source / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_our_tree_keeps_every_contract() -> None:
    done = lint(list(PACKAGES.values()))
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken." in done.stdout


@pytest.mark.parametrize(
    ("contract", "file", "line"),
    [
        ("core-floors", "tenon_core/state/rows.py", "import tenon_core.engine.engine"),
        ("core-floors", "tenon_core/models/model.py", "def lazy():\n    import tenon_core.state.rows"),
        ("core-floors", "tenon_core/basement/__init__.py", ""),  # a room without a floor
        ("contract-alone", "tenon_platforms/shapes.py", "import tenon_core.config"),
        ("core-no-plugin", "tenon_core/engine/start.py", "import tenon_cpu"),
        ("plugins-know-the-contract-only", "tenon_cpu/device.py", "import tenon_core.config"),
        ("plugins-know-the-contract-only", "tenon_triton/facts.py", "import tenon_core.config"),
        ("library-below-platforms", "tenon_triton/facts.py", "import tenon_cuda"),
        ("platforms-apart", "tenon_cuda/options.py", "import tenon_cpu"),
        ("sdk-knows-no-plugin", "tenon_plugin_sdk/conformance/subject.py", "import tenon_cpu"),
        ("no-vendor-library", "tenon_core/execution/runner.py", "import triton"),
        ("no-circles", "tenon_platforms/dtypes.py", "import tenon_platforms.model"),
        ("no-circles", "tenon_core/models/families/common.py", "import tenon_core.models.families.llama"),
    ],
)
def test_a_broken_contract_is_found(copied: Path, contract: str, file: str, line: str) -> None:
    path = copied / file
    before = path.read_text() if path.exists() else None
    path.parent.mkdir(exist_ok=True)
    path.write_text((before or "") + "\n" + line + "\n")
    try:
        done = lint([copied], contract)
    finally:
        if before is None:
            shutil.rmtree(path.parent)
        else:
            path.write_text(before)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 broken" in done.stdout or "not listed as layers" in done.stdout.lower() + done.stderr.lower(), done.stdout
