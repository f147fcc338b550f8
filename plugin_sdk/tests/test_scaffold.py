"""`tenon-sdk new`: names, folders and errors. That what it writes works is shown in tests/house/test_scaffold.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

from tenon_platforms import ops
from tenon_platforms.errors import ConfigError
from tenon_platforms.manifest import accepts
from tenon_platforms.ops.spec import Spec
from tenon_platforms.version import contract_version_text
from tenon_plugin_sdk.scaffold.cli import main
from tenon_plugin_sdk.scaffold.names import PluginNames
from tenon_plugin_sdk.scaffold.write import TEMPLATES, contract_range, write_plugin

pytestmark = pytest.mark.unit
GUIDE = Path(__file__).parents[2] / "docs/writing-a-platform.md"


def test_one_name_gives_all() -> None:
    names = PluginNames.of("big-chip2")
    assert (names.name, names.distribution, names.module, names.title) == (
        "big-chip2",
        "tenon-big-chip2",
        "tenon_big_chip2",
        "BigChip2",
    )


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("Acme", "try acme"),
        ("acme_2", "try acme-2"),
        ("tenon-acme", "try acme"),
        ("2fast", "try fast"),
        ("a b", "try a-b"),
        ("-", "choose a word"),
        ("", "choose a word"),
        ("acme-", "try acme"),
        ("../acme", "try acme"),
    ],
)
def test_bad_names(name: str, remedy: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot name a platform|is the name of a package") as caught:
        write_plugin(name, tmp_path / "plugin")
    assert caught.value.remedy is not None
    assert remedy in caught.value.remedy
    assert not (tmp_path / "plugin").exists()


@pytest.mark.parametrize("name", ["reference", "null", "cpu", "cuda"])
def test_a_taken_platform_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' is taken: tenon-"):
        write_plugin(name, tmp_path / "plugin")


def test_the_template_and_the_guide_name_every_feature() -> None:
    """What a spec may require is in no signature: whoever writes an offer finds the names there."""
    names = {item.metadata["feature"] for spec in specs() for item in fields(spec) if "feature" in item.metadata}
    assert "attention.soft_cap" in names
    for page in (TEMPLATES / "package/ops/offers.py.tmpl", GUIDE):
        text = page.read_text(encoding="utf-8")
        assert not {name for name in names if name not in text}, page


def specs() -> Iterator[type[Spec]]:
    """Every spec of the contract."""
    for module in iter_modules(ops.__path__):
        held = vars(import_module(f"{ops.__name__}.{module.name}")).values()
        yield from (one for one in held if isinstance(one, type) and issubclass(one, Spec))


def test_a_taken_module_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'tenon_plugin_sdk' is taken"):
        write_plugin("plugin-sdk", tmp_path / "plugin")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        write_plugin("acme", tmp_path)
    with pytest.raises(ConfigError, match="is a file"):
        write_plugin("acme", tmp_path / "notes.txt")
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_plugin("acme", tmp_path / "file" / "inside")


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    _, folder, written = write_plugin("acme", tmp_path)
    assert folder == tmp_path
    assert Path("src/tenon_acme/platform.toml") in written


def test_every_placeholder_is_filled_in(tmp_path: Path) -> None:
    _, folder, written = write_plugin("big-chip", tmp_path / "new")
    held = {file: (folder / file).read_text() for file in written}
    assert not [str(file) for file, text in held.items() if "${" in text or "@@" in text]
    sockets = ("device", "attention", "execution", "collectives", "capabilities", "platform")
    assert {f"src/tenon_big_chip/{name}.py" for name in sockets} <= {file.as_posix() for file in written}
    assert "--platform-opt big-chip.streams" in held[Path("src/tenon_big_chip/platform.toml")]


def test_the_range_covers_this_contract() -> None:
    assert accepts(contract_range(), contract_version_text())
    assert not accepts(contract_range(), "99.0")


def test_the_command_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "acme", "--dir", str(tmp_path / "plugin")]) == 0
    said = capsys.readouterr()
    assert f"wrote tenon-acme to {tmp_path / 'plugin'}" in said.out
    assert "pytest --level L1" in said.out
    assert said.err == ""


def test_the_command_writes_to_a_folder_of_the_plugins_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "acme"]) == 0
    assert (tmp_path / "tenon-acme" / "pyproject.toml").exists()
    assert main(["new", "acme"]) == 2
    assert capsys.readouterr().err.startswith("error: tenon-acme exists and is not empty")


def test_a_wrong_name_ends_in_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "Acme"]) == 2
    said = capsys.readouterr()
    assert said.err.splitlines()[0].startswith("error: 'Acme' cannot name a platform")
    assert said.err.splitlines()[1] == "remedy: try acme"
