"""Kernels of a folder are found wherever it is: moved, or only readable."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tenon_platforms.errors import ConfigError
from tenon_triton import kernel_cache
from tenon_triton.kernel_cache import MovableCache

pytestmark = pytest.mark.unit
SCRIPT = Path(__file__).parent / "kept_kernels.py"


def run(folder: Path, *arguments: str, own: Path) -> dict[str, Any]:
    """What the script says. own: Triton's own place."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TRITON_CACHE_DIR": str(own)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), *arguments],
        env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_moved_folder_has_its_kernels_and_one_that_is_only_read_is_left_alone(tmp_path: Path) -> None:
    made, moved, own = tmp_path / "made", tmp_path / "elsewhere" / "moved", tmp_path / "own"
    first = run(made, own=own)
    assert first["compiled"] == 2 and all(first["machine_code"])
    assert not own.exists(), "all is in the folder that was asked for"
    moved.parent.mkdir()
    made.rename(moved)
    assert run(moved, own=own) == first | {"compiled": 0}
    before = files_of(moved)
    unusable = tmp_path / "file"  # as Triton's own place in a container that can write nowhere
    unusable.touch()
    assert run(moved, "read-only", own=unusable) == first | {"compiled": 0}
    assert files_of(moved) == before
    lost = next(path for path in moved.rglob("*.cubin"))
    lost.unlink()
    assert run(moved, "read-only", own=own) == first | {"compiled": 1}, "what it lacks is compiled into the own place"
    assert list(own.rglob("*.cubin")) and not lost.exists()
    shutil.rmtree(own)
    assert run(moved, own=own) == first | {"compiled": 1}
    assert lost.exists() and files_of(moved) == before


@pytest.fixture
def _as_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kept_in", "shipped", "own"):
        monkeypatch.setattr(MovableCache, name, None)
    for name in ("dir", "manager_class"):
        monkeypatch.setitem(kernel_cache.knobs.cache.__dict__, name, getattr(kernel_cache.knobs.cache, name))
    monkeypatch.setenv("TRITON_CACHE_DIR", kernel_cache.knobs.cache.dir)  # Triton sets it, for processes that we start


@pytest.mark.usefixtures("_as_at_first")
def test_a_file_and_a_second_folder_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for wrong in (file, file / "below", "~no-such-user/kernels", tmp_path / "no\0name"):
        with pytest.raises(ConfigError, match=f"kernels cannot be kept in {wrong}: "):
            kernel_cache.keep_in(str(wrong))
    kernel_cache.keep_in(str(tmp_path / "one"))
    kernel_cache.keep_in(str(tmp_path / "one"))
    with pytest.raises(ConfigError, match=r"are kept in .*one, and cannot be in .*two too"):
        kernel_cache.keep_in(str(tmp_path / "two"))
    assert not (tmp_path / "two").exists()


@pytest.mark.usefixtures("_as_at_first")
def test_an_empty_folder_that_can_only_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    before = kernel_cache.knobs.cache.dir
    kernel_cache.keep_in(str(tmp_path))
    assert kernel_cache.knobs.cache.dir == before
    assert "can only be read, and holds no kernels" in caplog.text


@pytest.mark.usefixtures("_as_at_first")
@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "[" * 100_000, '{"child_paths": 3}', '{"child_paths": {}}', '{"child_paths": [["kernel.json"]]}',
        '{"child_paths": {"kernel.json": "", "gone.cubin": "/old/gone.cubin"}}',
        '{"child_paths": {"kernel.json": "", "empty.cubin": ""}}', '{"child_paths": {"kernel.json": "", "folder": ""}}',
        '{"child_paths": {"kernel.cubin": ""}}', '{"child_paths": {"kernel.json": "", "../outside": ""}}',
        '{"child_paths": ["kernel.json", 3]}', json.dumps({"child_paths": ["kernel.json", "a" * 400]}),
        json.dumps({"child_paths": ["kernel.json", str(SCRIPT)]}),
    ],
)  # fmt: skip
def test_a_list_that_is_none_or_leads_to_no_file_here_is_no_find(tmp_path: Path, text: str) -> None:
    kernel_cache.keep_in(str(tmp_path))
    cache = MovableCache("key")
    cache.put("code", "kernel.json")
    cache.put(b"code", "kernel.cubin")
    cache.put(b"", "empty.cubin")
    (tmp_path / "key" / "folder").mkdir()
    (tmp_path / "outside").write_text("code")
    cache.put(text, "__grp__kernel.json", binary=False)
    assert cache.get_group("kernel.json") is None
    names = ("kernel.json", "kernel.cubin")
    cache.put_group("kernel.json", {name: f"/old/{name}" for name in names})
    assert cache.get_group("kernel.json") == {name: str(tmp_path / "key" / name) for name in names}


@pytest.mark.usefixtures("_as_at_first")
@pytest.mark.parametrize("is_readable", [True, False])
def test_a_kernel_of_another_user_is_read_or_made_in_the_own_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_readable: bool
) -> None:
    monkeypatch.setattr(kernel_cache.knobs.cache, "dir", str(tmp_path / "own"))
    kernel_cache.keep_in(str(tmp_path / "all"))
    theirs = tmp_path / "all" / "key"
    MovableCache("key").put(b"theirs", "kernel.cubin")
    access = os.access

    def of_others(path: Any, mode: int, **others: Any) -> bool:
        refused = os.W_OK if is_readable else os.W_OK | os.R_OK
        return access(path, mode, **others) and not (mode & refused and theirs in (Path(path), Path(path).parent))

    monkeypatch.setattr(os, "access", of_others)
    cache = MovableCache("key")
    assert cache.get_file("kernel.cubin") == (str(theirs / "kernel.cubin") if is_readable else None)
    made = cache.put(b"ours", "other.cubin")
    assert made == str(tmp_path / "own" / "key" / "other.cubin") == MovableCache("key").get_file("other.cubin")
    assert MovableCache("new").put(b"ours", "kernel.cubin") == str(tmp_path / "all" / "new" / "kernel.cubin")
