"""Building the library: what stands in the way is told with its remedy, and what is there is not built again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenon_platforms.errors import PluginError
from tenon_sim import build

pytestmark = pytest.mark.unit


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tenon" / "sim"


def test_without_a_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PluginError, match="none of g\\+\\+") as caught:
        build.library_file()
    assert "apt install g++" in str(caught.value)


def test_the_compilers_words_are_told(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "native"
    sources.mkdir()
    for unit in build.UNITS:
        (sources / f"{unit}.cpp").write_text("int f() { return undeclared; }\n")
    monkeypatch.setattr(build, "SOURCES", sources)
    with pytest.raises(PluginError, match="undeclared"):
        build.library_file()
    assert [file.name for file in cache.iterdir()] == ["lock"], "a failed build leaves nothing"


def test_what_is_there_is_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = build.cache_folder() / f"libtenon_sim-{build.fingerprint()}.so"
    file.touch()
    monkeypatch.setenv("PATH", "")
    assert build.library_file() == file


def test_a_folder_that_others_may_write_to_is_refused(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    with pytest.raises(PluginError, match="others than you"):
        build.library_file()


def test_a_link_is_refused(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    cache.parent.mkdir(parents=True)
    cache.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PluginError, match="is a link"):
        build.library_file()


def test_the_name_tells_torch_and_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.fingerprint()
    monkeypatch.setattr(build.torch, "__version__", "99.0")
    assert build.fingerprint() != before
