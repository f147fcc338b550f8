"""Our processes do not import from the folder they are started in; `python -m`, shown beside them, does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tenon_core
from tenon_core.children import module_command

pytestmark = pytest.mark.unit
MODULE = "tenon_core.client.template_worker"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder whose files bear the names of modules that every process imports."""
    for name in ("json", "struct", "msgspec", "torch", "jinja2"):
        (tmp_path / f"{name}.py").write_text("import sys; print('PLANTED'); sys.exit(9)\n")
    return tmp_path


def output_of(command: list[str], folder: Path) -> tuple[int, str]:
    done = subprocess.run(command, cwd=folder, input=b"", capture_output=True, timeout=60)
    return done.returncode, done.stdout.decode()


def test_the_current_folder_is_not_imported_from(hostile: Path) -> None:
    assert output_of(module_command(MODULE), hostile) == (0, "")
    code, said = output_of([sys.executable, "-m", MODULE], hostile)
    assert code == 9 and "PLANTED" in said, "the plant does not bite: this test would prove nothing"


def test_arguments_arrive_as_with_m(tmp_path: Path) -> None:
    code, said = output_of(module_command("tenon_core.cli.main", "nosuch"), tmp_path)
    assert code == 2 and not said


def test_no_process_of_ours_is_started_another_way() -> None:
    root = Path(tenon_core.__file__).parent
    way = re.compile(r"""["']-m["'](?!, "short_model")""")  # that one is a flag of ours
    found = [path.name for path in root.rglob("*.py") if way.search(path.read_text("utf-8"))]
    assert not found
