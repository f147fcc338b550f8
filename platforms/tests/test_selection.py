"""Selection: five states, fail closed, never a quiet fallback; every error says what, which and how to mend it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tenon_platforms.contract_fit import is_newer
from tenon_platforms.errors import ConfigError, PluginError, TenonError
from tenon_platforms.handshake import PluginLoadError, load_selected
from tenon_platforms.selection import (
    PluginState,
    Selection,
    SelectionError,
    SelectionRequest,
    reports,
    select,
    survey,
)

pytestmark = pytest.mark.unit

GPU = """
present = {any = [{pci = {vendor = "0x10de", class = ["0x0302"]}}, {node = "/dev/nvidia0"}]}
usable = {node = "/dev/nvidia0"}
inaccessible = "pass --device /dev/nvidia0"
visibility = {variables = ["CUDA_VISIBLE_DEVICES"], none = ["-1"]}
"""
HOST = "fallback = true"


class Bench:
    """One fake machine with one fake site."""

    def __init__(self, site: Any, machine: Any) -> None:
        self.site, self.machine = site, machine

    def request(self, platform: str | None = None, **environ: str) -> SelectionRequest:
        return SelectionRequest(platform=platform, environ=environ, root=self.machine.root, path=self.site.path)

    def select(self, platform: str | None = None, **environ: str) -> Selection:
        return select(self.request(platform, **environ))

    def refuse(
        self, *words: str, platform: str | None = None, kind: type[Exception] = SelectionError, **environ: str
    ) -> Any:
        """Expect an error whose text has all the words; returns it."""
        with pytest.raises(kind) as error:
            self.select(platform, **environ)
        for word in words:
            assert word in str(error.value), str(error.value)
        return error.value


@pytest.fixture
def bench(site: Any, machine: Any) -> Bench:
    return Bench(site, machine)


def states(items: Any) -> dict[str, PluginState]:
    return {item.name: item.state for item in items}


# The host.


def test_nothing_installed_runs_the_reference_with_a_loud_warning(bench: Bench) -> None:
    selection = bench.select()
    assert (selection.platform, selection.how) == ("reference", "fallback")
    (warning,) = selection.warnings
    assert "REFERENCE" in warning and "slow" in warning and "pip install tenon-core[cpu]" in warning


def test_the_host_platform_is_taken_quietly_where_there_is_no_accelerator(bench: Bench) -> None:
    bench.site.install("cpu", extra=HOST)
    selection = bench.select()
    assert (selection.platform, selection.warnings) == ("cpu", ())
    assert states(selection.plugins) == {
        "cpu": PluginState.SELECTED,
        "reference": PluginState.NOT_SELECTED,
        "null": PluginState.NOT_SELECTED,
    }


def test_a_broken_host_platform_is_an_error_not_the_reference(bench: Bench) -> None:
    bench.site.install("cpu", extra=HOST + "\nnonsense = 1")
    bench.refuse(
        "tenon-cpu 1.0", "broken", "unknown key 'nonsense'", "--platform reference", "--force-reinstall tenon-cpu"
    )


def test_an_old_host_platform_is_an_error_not_the_reference(bench: Bench) -> None:
    bench.site.install("cpu", extra=HOST, contract=">=0.0.1,<0.1")
    bench.refuse("tenon-cpu 1.0", "incompatible", ">=0.0.1,<0.1", "pip install --upgrade tenon-cpu")


def test_two_host_platforms_go_by_priority_and_a_tie_is_an_error(bench: Bench) -> None:
    bench.site.install("cpu", extra=HOST)
    bench.site.install("host", extra=HOST, priority=1)
    assert bench.select().platform == "host"
    bench.site.install("third", extra=HOST, priority=1)
    bench.refuse("'host' (tenon-host 1.0)", "'third' (tenon-third 1.0)", "--platform host or --platform third")


# Accelerators.


def test_the_accelerator_that_is_there_wins_over_the_host(bench: Bench) -> None:
    bench.site.install("cpu", extra=HOST, priority=99)
    bench.site.install("cuda", hardware=GPU)
    bench.machine.nvidia()
    selection = bench.select()
    assert (selection.platform, selection.how, selection.warnings) == ("cuda", "hardware", ())
    assert states(selection.plugins)["cpu"] is PluginState.NOT_SELECTED
    assert any("PCI device" in text for text in selection.hardware[0].evidence)


def test_absent_hardware_is_a_state(bench: Bench) -> None:
    bench.site.install("cpu", extra=HOST)
    bench.site.install("cuda", hardware=GPU)
    selection = bench.select()
    assert selection.platform == "cpu"
    assert states(selection.plugins)["cuda"] is PluginState.ABSENT_HARDWARE


@pytest.mark.parametrize("host", [True, False], ids=["with host platform", "without"])
def test_hardware_without_its_plugin_fails_closed(bench: Bench, host: bool) -> None:
    if host:
        bench.site.install("cpu", extra=HOST)
    bench.machine.nvidia()
    escape = "--platform cpu" if host else "--platform reference"
    error = bench.refuse(
        "NVIDIA GPU is here", "/dev/nvidia0", "[10de:2335]", "none is installed", "platform 'cuda'", "contract: 0.1",
        "pip install tenon-core[cuda]", escape,
    )  # fmt: skip
    assert isinstance(error, PluginError) and error.hardware[0].device_kind == "cuda"
    assert PluginState.SELECTED not in states(error.plugins).values()


def test_hardware_with_a_broken_plugin_fails_closed(bench: Bench) -> None:
    bench.site.install("cpu", extra=HOST)
    bench.site.install("cuda", hardware=GPU, extra="nonsense = 1")
    bench.machine.nvidia()
    error = bench.refuse(
        "NVIDIA GPU is here", "tenon-cuda 1.0", "broken", "unknown key 'nonsense'", "platform.toml",
        "pip install --force-reinstall tenon-cuda", "--platform cpu",
    )  # fmt: skip
    assert states(error.plugins)["cuda"] is PluginState.BROKEN


def test_a_broken_plugin_for_unlisted_hardware_fails_closed_by_its_own_signs(bench: Bench) -> None:
    bench.site.install("thing", hardware='present = {node = "/dev/thing0"}', extra="nonsense = 1")
    assert bench.select().platform == "reference"
    bench.machine.node("/dev/thing0")
    bench.refuse("hardware of platform 'thing'", "/dev/thing0", "unknown key 'nonsense'", "tenon-thing")


def test_a_broken_plugin_whose_hardware_cannot_be_told_is_warned_of(bench: Bench) -> None:
    bench.site.install("cpu", extra=HOST)
    bench.site.install("thing", toml="not toml at all")
    selection = bench.select()
    assert selection.platform == "cpu"
    assert "'thing' (tenon-thing 1.0) is broken" in selection.warnings[0]


@pytest.mark.parametrize(
    ("contract", "words"),
    [
        (">=0.0.1,<0.1", ["the plugin is older", "pip install --upgrade tenon-cuda"]),
        (
            ">=2.0,<3",
            ["the plugin is newer", "pip install --upgrade tenon-core tenon-platforms", "an older tenon-cuda"],
        ),
    ],
    ids=["too old", "too new"],
)
def test_hardware_with_an_incompatible_plugin_fails_closed(bench: Bench, contract: str, words: list[str]) -> None:
    bench.site.install("cuda", hardware=GPU, contract=contract, version="3.1")
    bench.machine.nvidia()
    error = bench.refuse(
        "tenon-cuda 3.1", "incompatible", contract, "this is contract 0.1", "--platform reference", *words
    )
    assert states(error.plugins)["cuda"] is PluginState.INCOMPATIBLE


@pytest.mark.parametrize(
    ("contract", "newer"),
    [(">=0.2", True), ("~=1.0", True), ("==1.*", True), (">0.1", True), ("<0.1", False), ("==0.0.*", False)],
)
def test_which_of_the_two_is_older(contract: str, newer: bool) -> None:
    assert is_newer(contract) is newer


def test_two_plugins_for_one_device_go_by_priority(bench: Bench) -> None:
    bench.site.install("cuda", hardware=GPU)
    bench.site.install("fastcuda", kind="cuda", hardware=GPU, priority=5)
    bench.machine.nvidia()
    selection = bench.select()
    assert selection.platform == "fastcuda"
    report = next(item for item in selection.plugins if item.name == "cuda")
    assert report.state is PluginState.NOT_SELECTED and "'fastcuda' has a higher priority" in report.reason


@pytest.mark.parametrize("kind", ["cuda", "other"], ids=["same kind", "same PCI device"])
def test_a_tie_is_an_error_that_names_both_flags(bench: Bench, kind: str) -> None:
    bench.site.install("cuda", hardware=GPU)
    bench.site.install("fastcuda", kind=kind, hardware=GPU, version="2.0")
    bench.machine.nvidia()
    bench.refuse(
        "equal priority 0", "'cuda' (tenon-cuda 1.0)", "'fastcuda' (tenon-fastcuda 2.0)",
        "--platform cuda or --platform fastcuda",
    )  # fmt: skip


def test_a_healthy_plugin_serves_where_another_is_sick_and_says_so(bench: Bench) -> None:
    bench.site.install("cuda", hardware=GPU, contract=">=2")
    bench.site.install("fastcuda", kind="cuda", hardware=GPU)
    bench.machine.nvidia()
    selection = bench.select()
    assert selection.platform == "fastcuda" and "'cuda' (tenon-cuda 1.0) is incompatible" in selection.warnings[0]


@pytest.mark.parametrize("installed", [True, False], ids=["both installed", "one missing"])
def test_two_kinds_of_accelerator_are_an_error_that_names_the_flag(bench: Bench, installed: bool) -> None:
    bench.site.install("cuda", hardware=GPU)
    if installed:
        bench.site.install("xpu", hardware='present = {pci = {vendor = "0x8086", device = ["0xe20b"]}}')
    bench.machine.nvidia()
    bench.machine.arc()
    words = ["2 kinds of accelerator", "NVIDIA", "Intel", "--platform cuda or --platform xpu", "TENON_PLATFORM"]
    bench.refuse(*words, *([] if installed else ["none is installed; platform 'xpu' serves it"]))
    assert bench.select("cuda").platform == "cuda"


def test_a_plugin_that_does_not_serve_this_card_is_believed(bench: Bench) -> None:
    """Its signs are its word: known hardware that it leaves out is noted, and forces nothing."""
    bench.site.install("cpu", extra=HOST)
    bench.site.install("cuda", hardware='present = {pci = {vendor = "0x10de", device = ["0x2900-0x2fff"]}}')
    bench.machine.nvidia()
    selection = bench.select()
    assert selection.platform == "cpu"
    assert (
        "NVIDIA GPU" in selection.notes[0]
        and "not among what platform 'cuda' (tenon-cuda 1.0) serves" in selection.notes[0]
    )


# Hidden and inaccessible hardware.


@pytest.mark.parametrize("value", ["", "-1"])
@pytest.mark.parametrize("installed", [True, False], ids=["plugin installed", "plugin missing"])
def test_an_empty_visibility_variable_means_no_hardware(bench: Bench, value: str, installed: bool) -> None:
    bench.site.install("cpu", extra=HOST)
    if installed:
        bench.site.install("cuda", hardware=GPU)
    bench.machine.nvidia()
    selection = bench.select(CUDA_VISIBLE_DEVICES=value)
    assert selection.platform == "cpu" and selection.warnings == ()
    assert f"hidden by CUDA_VISIBLE_DEVICES={value!r}" in selection.notes[0]
    if installed:
        assert states(selection.plugins)["cuda"] is PluginState.ABSENT_HARDWARE


def test_a_container_without_nodes_and_without_plugin_is_warned(bench: Bench) -> None:
    bench.site.install("cpu", extra=HOST)
    bench.machine.nvidia(nodes=False)
    selection = bench.select()
    assert selection.platform == "cpu"
    (warning,) = selection.warnings
    for word in ("NVIDIA GPU (inaccessible", "[10de:2335]", "no device node", "--gpus all"):
        assert word in warning


def test_a_container_without_nodes_but_with_the_plugin_fails_closed(bench: Bench) -> None:
    """Who installed the plugin meant to use the device."""
    bench.site.install("cpu", extra=HOST)
    bench.site.install("cuda", hardware=GPU)
    bench.machine.nvidia(nodes=False)
    error = bench.refuse(
        "'cuda' (tenon-cuda 1.0) is installed", "this process cannot use it", "[10de:2335]",
        "pass --device /dev/nvidia0", "--platform cpu",
    )  # fmt: skip
    assert states(error.plugins)["cuda"] is PluginState.ABSENT_HARDWARE
    assert bench.select("cpu").platform == "cpu"


# By name.


def test_a_name_wins_over_hardware_and_the_flag_over_the_environment(bench: Bench) -> None:
    bench.site.install("cpu", extra=HOST)
    bench.site.install("cuda", hardware=GPU)
    bench.machine.nvidia()
    assert bench.select("cpu").platform == "cpu"
    assert bench.select(TENON_PLATFORM="cpu").platform == "cpu"
    assert bench.select("cuda", TENON_PLATFORM="cpu").platform == "cuda"
    assert bench.select("auto", TENON_PLATFORM="cpu").platform == "cuda"
    assert bench.select(TENON_PLATFORM=" ").platform == "cuda"
    assert "not used, since --platform says cpu: NVIDIA GPU" in bench.select("cpu").notes[0]


def test_hidden_platforms_are_chosen_by_name_only(bench: Bench) -> None:
    bench.site.install("sim", extra="hidden = true", priority=1000)
    assert bench.select().platform == "reference"
    for name in ("sim", "null", "reference"):
        selection = bench.select(name)
        assert selection.platform == name and selection.warnings == ()


def test_a_hidden_platform_does_not_compete_for_hardware(bench: Bench) -> None:
    bench.site.install("cuda", hardware=GPU)
    bench.site.install("lab", kind="cuda", hardware=GPU, priority=9, extra="hidden = true")
    bench.machine.nvidia()
    assert bench.select().platform == "cuda" and bench.select("lab").platform == "lab"


@pytest.mark.parametrize("source", ["--platform", "TENON_PLATFORM"])
def test_a_known_name_that_is_not_installed_says_what_to_install(bench: Bench, source: str) -> None:
    asked: dict[str, Any] = {"platform": "cuda"} if source == "--platform" else {"TENON_PLATFORM": "cuda"}
    bench.refuse(
        f"'cuda', asked for by {source}, is not installed", "no accelerator", "pip install tenon-core[cuda]", **asked
    )


def test_the_host_platform_by_name_not_installed(bench: Bench) -> None:
    bench.refuse("'cpu'", "not installed", "pip install tenon-core[cpu]", "--platform reference", platform="cpu")


def test_an_unknown_name_lists_the_known_and_guesses(bench: Bench) -> None:
    bench.refuse(
        "'cuba'", "not known", "installed are null, reference", "rocm", "did you mean --platform cuda?",
        platform="cuba", kind=ConfigError,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("prepare", "environ", "words"),
    [
        ("absent", {}, ["none of its hardware was seen"]),
        ("nodeless", {}, ["inaccessible", "pass --device /dev/nvidia0"]),
        ("hidden", {"CUDA_VISIBLE_DEVICES": ""}, ["hidden by CUDA_VISIBLE_DEVICES=''", "unset CUDA_VISIBLE_DEVICES"]),
    ],
)
def test_a_named_platform_that_cannot_run_here_says_why(
    bench: Bench, prepare: str, environ: dict[str, str], words: list[str]
) -> None:
    bench.site.install("cuda", hardware=GPU)
    if prepare != "absent":
        bench.machine.nvidia(nodes=prepare != "nodeless")
    bench.refuse(
        "'cuda', asked for by --platform", "tenon-cuda 1.0", "cannot run here", *words, platform="cuda", **environ
    )


def test_a_named_broken_or_incompatible_platform_says_so(bench: Bench) -> None:
    bench.site.install("bad", toml="=")
    bench.site.install("old", contract="<0.1", extra="hidden = true")
    bench.refuse("tenon-bad 1.0", "is broken", "cannot be read as TOML", "--force-reinstall tenon-bad", platform="bad")
    bench.refuse("tenon-old 1.0", "is incompatible", "<0.1", "--upgrade tenon-old", platform="old")


def test_who_writes_a_platform_is_told_to_mend_its_files(bench: Bench, tmp_path: Path) -> None:
    """An editable install: to install it again changes nothing."""
    source = tmp_path / "checkout/src"
    bench.site.package("tenon_mine", "=", below=source)
    (bench.site.folder / "_mine.pth").write_text(f"{source}\n")
    bench.site.dist_info("tenon-mine", "0.1", "[tenon.platforms]\nmine = tenon_mine\n", ["_mine.pth"])
    error = bench.refuse("tenon-mine 0.1", "is broken", platform="mine")
    assert error.remedy.startswith(f"mend {source / 'tenon_mine'}, from where tenon-mine is installed")


# Data.


def test_every_plugin_is_in_exactly_one_of_the_five_states(bench: Bench) -> None:
    bench.site.install("cuda", hardware=GPU)
    bench.site.install("ghost", hardware='present = {node = "/dev/ghost"}')
    bench.site.install("old", hardware=GPU, contract="<0.1")
    bench.site.install("bad", toml="=")
    bench.machine.nvidia()
    assert states(bench.select().plugins) == {
        "reference": PluginState.NOT_SELECTED,
        "null": PluginState.NOT_SELECTED,
        "cuda": PluginState.SELECTED,
        "ghost": PluginState.ABSENT_HARDWARE,
        "old": PluginState.INCOMPATIBLE,
        "bad": PluginState.BROKEN,
    }
    found = reports(survey(bench.request()))
    assert states(found)["cuda"] is PluginState.NOT_SELECTED and "tenon-cuda 1.0" in found[2].line()


def test_a_selection_is_frozen_and_survives_plain_data(bench: Bench) -> None:
    bench.site.install("cuda", hardware=GPU, extra="[options.depth]\ntype = 'int'\nchoices = [1, 2]")
    bench.machine.nvidia()
    bench.machine.pci(0x1DA3, 0x1020, 0x120000)
    selection = bench.select()
    with pytest.raises(AttributeError):
        selection.how = "other"  # type: ignore[misc]
    data = json.loads(json.dumps(selection.to_dict()))
    back = Selection.from_dict(data)
    assert back.to_dict() == selection.to_dict()
    assert (back.platform, back.plugins, back.hardware) == ("cuda", selection.plugins, selection.hardware)
    assert "Intel Gaudi" in selection.warnings[0] and back.warnings == selection.warnings


# Loading.

CODE = """
class Platform:
    name = "{name}"
    contract = "{contract}"
    def __init__(self, options): self.options = options
"""


def load(bench: Bench, name: str, code: str, **kwargs: Any) -> Any:
    bench.site.install(name, code=code, extra="hidden = true", **kwargs)
    selection = Selection.from_dict(bench.select(name).to_dict())
    return load_selected(selection)


def test_loading_returns_the_entry(bench: Bench, importable: Any) -> None:
    loaded = load(bench, "thing", CODE.format(name="thing", contract=">=0.1,<1"))
    assert loaded({"a": 1}).options == {"a": 1}


@pytest.mark.parametrize(
    ("code", "words", "state"),
    [
        ("import no_such_library", ["ModuleNotFoundError", "no_such_library"], PluginState.BROKEN),
        ("raise OSError('libvendor.so.1: cannot open\\nmore')", ["OSError: libvendor.so.1"], PluginState.BROKEN),
        ("import sys; sys.exit(3)", ["SystemExit: 3"], PluginState.BROKEN),
        ("Other = 1", ["AttributeError", "Platform"], PluginState.BROKEN),
        ("class Platform: pass", ["name None and contract None"], PluginState.BROKEN),
        (CODE.format(name="other", contract=">=0.1"), ["named 'other'", "says 'thing'"], PluginState.BROKEN),
        (CODE.format(name="thing", contract="soon"), ["contract 'soon'", "expected a range"], PluginState.BROKEN),
        (CODE.format(name="thing", contract=">=4"), [">=4", "this is contract 0.1", "newer"], PluginState.INCOMPATIBLE),
    ],
)
def test_what_goes_wrong_on_loading_names_plugin_versions_cause_and_remedy(
    bench: Bench, importable: Any, code: str, words: list[str], state: PluginState
) -> None:
    bench.site.install("cpu", extra=HOST)
    with pytest.raises(PluginLoadError) as error:
        load(bench, "thing", code, version="9.9")
    text = str(error.value)
    for word in ["'thing' (tenon-thing 9.9", "remedy: pip install", "--platform cpu", *words]:
        assert word in text
    assert states(error.value.selection.plugins)["thing"] is state


def test_the_cause_keeps_its_traceback(bench: Bench, importable: Any) -> None:
    code = "def deep():\n    raise OSError('libvendor.so.1')\ndeep()\n"
    with pytest.raises(PluginLoadError) as error:
        load(bench, "thing", code)
    assert "in deep" in error.value.traceback_text and "Traceback" in error.value.traceback_text
    assert "Traceback" not in str(error.value) and isinstance(error.value.__cause__, OSError)


def test_the_vendors_own_remedy_and_docs_are_shown(bench: Bench, importable: Any) -> None:
    bench.site.install(
        "thing", code="import nope", extra='hidden = true\nremedy = "install driver 5"\ndocs = "https://example.org/x"'
    )
    with pytest.raises(PluginLoadError, match=r"remedy: install driver 5 \(see https://example.org/x\)"):
        load_selected(bench.select("thing"))


def test_an_incompatible_plugin_is_refused_before_it_is_imported(bench: Bench, importable: Any) -> None:
    """A worker whose contract differs from the parent's: the plan says thing, the handshake says no."""
    bench.site.install("thing", code="import builtins; builtins.thing_ran = True", extra="hidden = true")
    data = bench.select("thing").to_dict()
    data["manifest"]["contract"] = ">=7"
    with pytest.raises(PluginLoadError, match=r"its manifest says it is built for contract >=7"):
        load_selected(Selection.from_dict(data))
    assert "tenon_thing" not in sys.modules


def test_selecting_imports_neither_torch_nor_a_plugin(bench: Bench, tmp_path: Path) -> None:
    """In a fresh process, with a plugin installed on the path that the choice falls on."""
    bench.site.install("cuda", hardware=GPU)
    bench.site.install("bad", toml="=")
    bench.machine.nvidia()
    script = (
        "import sys, json, pathlib\n"
        "from tenon_platforms.selection import SelectionRequest, select\n"
        "s = select(SelectionRequest(environ={}, root=pathlib.Path(sys.argv[1])))\n"
        "print(json.dumps([s.platform, sorted(sys.modules)]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(bench.machine.root)],
        env={"PYTHONPATH": str(bench.site.folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    platform, modules = json.loads(done.stdout)
    assert platform == "cuda"
    ours = {name for name in modules if name.startswith("tenon")}
    assert "tenon_platforms.selection" in ours
    assert {name.partition(".")[0] for name in ours} == {"tenon_platforms"}
    assert not {"torch", "numpy"} & set(modules)
    assert not {name for name in ours if name.startswith("tenon_platforms.builtin")}


def test_an_error_says_its_branch_to_other_processes() -> None:
    error = SelectionError("no", remedy=None, found=survey(SelectionRequest(environ={})))
    assert error.kind == "PluginError"
    assert (ConfigError("x").kind, TenonError("x").kind) == ("ConfigError", "TenonError")
