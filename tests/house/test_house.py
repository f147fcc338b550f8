"""The house around the code: scripts that make environments, security floors, metadata, licences.

Slow proofs (fresh environments, wheels built and installed) are `.ci/run`'s; here is what can be judged at once.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from architecture.rules.outside_imports import tomllib
from architecture.sources import ROOT
from packaging.requirements import Requirement
from packaging.version import Version

pytestmark = pytest.mark.unit
PROJECTS = [path.parent for path in sorted([*ROOT.glob("*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")])]
EXTRAS = ("cpu", "cuda", "rocm", "xpu", "tpu", "ascend", "gaudi")


def script(name: str) -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        yield __import__(name)
    finally:
        sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture
def bootstrap() -> Iterator[ModuleType]:
    yield from script("bootstrap")


@pytest.fixture
def check_floors() -> Iterator[ModuleType]:
    yield from script("check_floors")


@pytest.fixture
def check_wheels() -> Iterator[ModuleType]:
    yield from script("check_wheels")


# environments


def test_another_vendors_wheels_are_seen(bootstrap: ModuleType) -> None:
    names = ["torch", "nvidia-cublas", "nvidia_nccl_cu13", "triton", "cuda-bindings", "sympy", "pytorch-triton-rocm"]
    assert len(bootstrap.foreign_wheels(names)) == 5
    assert bootstrap.foreign_wheels(["torch", "numpy", "Jinja2", "filelock", "intervals"]) == []


@pytest.mark.parametrize(("names", "stops"), [(["torch", "sympy"], False), (["torch", "nvidia-cublas"], True)])
def test_nothing_is_installed_where_torch_would_bring_them(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: list[str], stops: bool
) -> None:
    calls: list[tuple[str, ...]] = []

    def pip(python: Path, *arguments: str | Path) -> None:
        calls.append(tuple(map(str, arguments)))
        if "--report" in arguments:
            report = {"install": [{"metadata": {"name": name}} for name in names]}
            Path(arguments[arguments.index("--report") + 1]).write_text(json.dumps(report))

    monkeypatch.setattr(bootstrap, "pip", pip)
    monkeypatch.setattr(bootstrap, "make_venv", lambda folder: folder)
    if stops:
        with pytest.raises(bootstrap.Stop, match=r"Nothing was installed[\s\S]*CPU builds[\s\S]*PIP_EXTRA_INDEX_URL"):
            bootstrap.prepare("demo", tmp_path)
        assert len(calls) == 1
        assert "--dry-run" in calls[0]
        return
    bootstrap.prepare("demo", tmp_path)
    assert "--dry-run" in calls[0]
    assert "--dry-run" not in calls[1]
    bootstrap.prepare("demo", tmp_path)
    assert len(calls) == 2, "the stamp makes a second run free"


def test_what_the_tests_ask_for_by_name_is_not_judged(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (pinned,) = [
        Requirement(line.partition("  #")[0])
        for line in bootstrap.TEST_REQUIREMENTS.read_text().splitlines()
        if line.startswith("triton")
    ]
    assert bootstrap.foreign_wheels([pinned.name]), "where torch brings it, torch is no CPU build"
    assert pinned.marker is not None
    assert pinned.marker.evaluate({"sys_platform": "linux", "platform_machine": "x86_64"})
    assert not pinned.marker.evaluate({"sys_platform": "darwin", "platform_machine": "arm64"})
    calls: list[tuple[str, ...]] = []

    def pip(python: Path, *arguments: str | Path) -> None:
        calls.append(tuple(map(str, arguments)))
        if "--report" in arguments:
            Path(arguments[arguments.index("--report") + 1]).write_text('{"install": []}')

    monkeypatch.setattr(bootstrap, "pip", pip)
    monkeypatch.setattr(bootstrap, "make_venv", lambda folder: folder)
    bootstrap.prepare("test", tmp_path)
    assert str(bootstrap.TEST_REQUIREMENTS) not in calls[0]
    assert str(bootstrap.TEST_REQUIREMENTS) in calls[1]


def test_an_old_python_is_told(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bootstrap, "MIN_PYTHON", (99, 0))
    with pytest.raises(bootstrap.Stop, match=r"too old: use 3\.10"):
        bootstrap.prepare("demo", tmp_path)


def test_every_package_of_the_checkout_is_installed_for_tests(bootstrap: ModuleType) -> None:
    assert {str(path.relative_to(ROOT)) for path in PROJECTS} == set(bootstrap.PACKAGES["test"])


# floors


def test_a_version_below_its_floor_is_found(check_floors: ModuleType) -> None:
    floors, refused = check_floors.read_floors(check_floors.FLOORS.read_text())
    safe = {floor.name: next(iter(floor.specifier)).version for floor in floors}
    assert check_floors.violations(floors, refused, safe) == []
    assert check_floors.violations(floors, refused, {}) == []
    for floor in floors:
        assert len(check_floors.violations(floors, refused, {**safe, floor.name: "0.0.1"})) == 1
    assert len(check_floors.violations(floors, refused, {"diskcache": "5.6.3"})) == 1


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.name)
def test_no_package_declares_less_than_the_floor(check_floors: ModuleType, project: Path) -> None:
    floors, _ = check_floors.read_floors(check_floors.FLOORS.read_text())
    least = {floor.name: Version(next(iter(floor.specifier)).version) for floor in floors}
    for text in tomllib.loads((project / "pyproject.toml").read_text())["project"]["dependencies"]:
        requirement = Requirement(text)
        if requirement.name.lower() in least:
            declared = [Version(one.version) for one in requirement.specifier if one.operator in {">=", "=="}]
            assert declared and max(declared) >= least[requirement.name.lower()], text


# packages


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.name)
def test_a_package_has_what_a_package_needs(project: Path) -> None:
    table = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert table["name"].startswith("tenon-")
    assert table["requires-python"] == ">=3.10"
    assert table["license"] == "Apache-2.0"
    assert (project / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    readme = (project / table["readme"]).read_text()
    installs = [line for line in readme.splitlines() if "pip install" in line]
    assert any(table["name"] in line or "tenon-core[" in line for line in installs), "how to install it"
    assert "```" in readme or "\n    " in readme, "one example"
    module = table["name"].replace("-", "_")
    assert (project / "src" / module / "py.typed").exists()
    for text in table["dependencies"]:
        requirement = Requirement(text)
        if requirement.name == "torch":
            operators = {one.operator for one in requirement.specifier}
            assert operators == {">=", "<"}, "torch is a range, never a pin"


def test_there_are_no_empty_packages() -> None:
    for folder in (ROOT / "plugins").iterdir():
        assert (folder / "pyproject.toml").exists(), f"{folder} is no package"


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_names_a_distribution(extra: str) -> None:
    from importlib.metadata import requires

    for source in (
        tomllib.loads((ROOT / "core" / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra],
        [text for text in requires("tenon-core") or () if f"extra == '{extra}'" in text.replace('"', "'")],
    ):
        (requirement,) = map(Requirement, source)
        assert requirement.name == f"tenon-{extra}"


def test_a_file_missing_from_a_wheel_is_found(check_wheels: ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "src"
    (source / "thing").mkdir(parents=True)
    for name in ("__init__.py", "platform.toml", "py.typed"):
        (source / "thing" / name).write_text("")

    def wheel(*names: str) -> Path:
        path = tmp_path / "thing-1-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, "")
        return path

    files = ["thing/__init__.py", "thing/platform.toml", "thing/py.typed", "thing-1.dist-info/licenses/LICENSE"]
    assert check_wheels.missing_from(wheel(*files), "thing", source) == []
    for file in files:
        rest = [name for name in files if name != file]
        assert check_wheels.missing_from(wheel(*rest), "thing", source), file
