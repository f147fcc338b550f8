"""Hardware: signs over fake trees, the table of well-known hardware and its false positives, visibility, containers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tenon_platforms.errors import ConfigError
from tenon_platforms.hardware import (
    HardwareSigns,
    Presence,
    SeenHardware,
    Visibility,
    known_hardware,
    probe,
)
from tenon_platforms.signs import Findings, Machine, parse_sign

pytestmark = pytest.mark.unit
VGA, DISPLAY_3D, DISPLAY, ACCELERATOR = 0x030000, 0x030200, 0x038000, 0x120000


def holds(sign: dict[str, Any], machine: Any, environ: dict[str, str] | None = None, *, access: bool = False) -> bool:
    return parse_sign(sign, "test").holds(Machine(machine.root, environ or {}), Findings(), access=access)


def known(machine: Any, environ: dict[str, str] | None = None) -> dict[str, SeenHardware]:
    """What the shipped table sees, by platform; absent left out."""
    here = Machine(machine.root, environ or {})
    seen = {
        row.platform: probe(row.signs, here, device_kind=row.device_kind, title=row.title)
        for row in known_hardware()
        if row.signs is not None
    }
    return {name: item for name, item in seen.items() if item.presence is not Presence.ABSENT}


def test_pci_signs_ask_vendor_class_and_device_together(machine: Any) -> None:
    machine.pci(0x1234, 0x0010, ACCELERATOR)
    match = {"vendor": "0x1234", "class": ["0x0302", "0x1200"], "device": ["0x0001", "0x0008-0x001f"]}
    assert holds({"pci": match}, machine)
    for change in ({"vendor": "0x1235"}, {"class": ["0x0300"]}, {"device": ["0x0001-0x000f", "0x0011"]}):
        assert not holds({"pci": {**match, **change}}, machine), change
    assert holds({"pci": {"vendor": "0x1234", "class": "0x12"}}, machine)


def test_node_file_library_and_module_signs(machine: Any) -> None:
    for path in ("/dev/thing3", "/opt/thing/v2/lib.so", "/usr/lib64/libthing.so.1", "/sys/module/thing/refcnt"):
        assert not holds({"node": path}, machine)
        machine.node(path)
    assert holds({"node": "/dev/thing[0-9]*"}, machine) and not holds({"node": "/dev/thing"}, machine)
    assert holds({"file": "/opt/thing/*/lib.so"}, machine)
    assert holds({"library": "libthing.so*"}, machine) and not holds({"library": "libthin.so*"}, machine)
    assert holds({"module": "thing"}, machine) and not holds({"module": "thin"}, machine)
    machine.node("/private/libown.so")
    assert not holds({"library": "libown.so"}, machine)
    assert holds({"library": "libown.so"}, machine, {"LD_LIBRARY_PATH": "relative:/private/"})


def test_all_and_any_nest_and_a_failed_all_leaves_no_evidence(machine: Any) -> None:
    machine.node("/dev/a")
    a, b = {"node": "/dev/a"}, {"node": "/dev/b"}
    assert holds({"any": [b, {"all": [a, a]}]}, machine)
    assert not holds({"all": [a, {"any": [b, b]}]}, machine)
    findings = Findings()
    parse_sign({"any": [{"all": [a, b]}, b]}, "test").holds(Machine(machine.root, {}), findings)
    assert findings.evidence == []


@pytest.mark.parametrize(
    ("sign", "words"),
    [
        ({}, ["exactly one of pci, node"]),
        ({"node": "/dev/a", "file": "/b"}, ["exactly one of"]),
        ({"all": []}, ["'all' is []", "at least one"]),
        ({"library": "/usr/lib/x.so"}, ["'library'", "without a folder"]),
        ({"pci": {"class": "0x03"}}, ["key 'vendor' is missing"]),
        ({"pci": {"vendor": "0x12345"}}, ["'0x12345'", "4 hexadecimal digits"]),
        ({"pci": {"vendor": "0x1234", "class": "0x030"}}, ["'class'", "2 or 4 or 6"]),
        ({"any": [{"any": [{"node": 3}]}]}, ["x.any.any", "'node' is 3"]),
    ],
)
def test_a_bad_sign_names_the_place_and_the_value(sign: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        parse_sign(sign, "x")
    for word in words:
        assert word in str(error.value)


CARDS = {
    "H200": ("cuda", (0x10DE, 0x2335, DISPLAY_3D), ["/dev/nvidia0", "/dev/nvidiactl"]),
    "RTX 4090": ("cuda", (0x10DE, 0x2684, VGA), ["/dev/nvidia0", "/dev/nvidiactl"]),
    "MI300X": ("rocm", (0x1002, 0x74A1, ACCELERATOR), ["/dev/kfd", "/dev/dri/renderD128"]),
    "MI355X": ("rocm", (0x1002, 0x75A3, ACCELERATOR), ["/dev/kfd", "/dev/dri/renderD128"]),
    "MI210": ("rocm", (0x1002, 0x740F, DISPLAY), ["/dev/kfd", "/dev/dri/renderD128"]),
    "RX 7900 XTX": ("rocm", (0x1002, 0x744C, VGA), ["/dev/kfd", "/dev/dri/renderD128"]),
    "GPU Max 1550": ("xpu", (0x8086, 0x0BD5, DISPLAY), ["/dev/dri/renderD128"]),
    "Arc A770": ("xpu", (0x8086, 0x56A0, VGA), ["/dev/dri/renderD128"]),
    "Arc B580": ("xpu", (0x8086, 0xE20B, VGA), ["/dev/dri/renderD128"]),
    "TPU v4": ("tpu", (0x1AE0, 0x005E, 0x088000), ["/dev/accel0"]),
    "TPU v6e": ("tpu", (0x1AE0, 0x006F, 0x088000), ["/dev/vfio/0"]),
    "Ascend 910B": ("ascend", (0x19E5, 0xD802, ACCELERATOR), ["/dev/davinci0", "/dev/davinci_manager"]),
    "Gaudi 2": ("gaudi", (0x1DA3, 0x1020, ACCELERATOR), ["/dev/accel/accel0"]),
    "Gaudi, old driver": ("gaudi", (0x1DA3, 0x1000, ACCELERATOR), ["/dev/hl0"]),
}


@pytest.mark.parametrize("card", CARDS)
def test_well_known_cards_are_usable_with_nodes_and_inaccessible_without(machine: Any, card: str) -> None:
    platform, ids, nodes = CARDS[card]
    address = machine.pci(*ids, render="renderD128")
    (item,) = known(machine).items()
    assert item[0] == platform and item[1].presence is Presence.INACCESSIBLE
    assert address in item[1].line() and "no device node for it" in item[1].line()
    assert "container" in item[1].remedy and ("driver" in item[1].remedy or "/dev/accel0" in item[1].remedy)
    for node in nodes:
        machine.node(node)
    (item,) = known(machine).items()
    assert item[0] == platform and item[1].presence is Presence.USABLE
    assert item[1].addresses == (address,) and item[1].remedy == ""


NOT_ACCELERATORS = {
    "Intel UHD 770": (0x8086, 0x4680, VGA),
    "Intel Lunar Lake": (0x8086, 0x64A0, VGA),
    "Intel Meteor Lake NPU": (0x8086, 0x7D1D, ACCELERATOR),
    "AMD Raphael iGPU": (0x1002, 0x164E, VGA),
    "AMD Phoenix iGPU": (0x1002, 0x15BF, DISPLAY),
    "AMD audio": (0x1002, 0xAB30, 0x040300),
    "old NVIDIA display card": (0x10DE, 0x128B, VGA),
    "NVIDIA audio": (0x10DE, 0x22BA, 0x040300),
    "NVSwitch": (0x10DE, 0x22A3, 0x068000),
    "virtio GPU": (0x1AF4, 0x1050, 0x038000),
    "QXL": (0x1B36, 0x0100, VGA),
    "ASPEED": (0x1A03, 0x2000, VGA),
    "Hyper-V video": (0x1414, 0x5353, VGA),
    "Google network": (0x1AE0, 0x0042, 0x020000),
    "Google disk": (0x1AE0, 0x001F, 0x010802),
    "Kunpeng compression": (0x19E5, 0xA250, ACCELERATOR),
    "Huawei network": (0x19E5, 0xA222, 0x020000),
    "Goya": (0x1DA3, 0x0001, ACCELERATOR),
}


@pytest.mark.parametrize("card", NOT_ACCELERATORS)
def test_other_cards_force_nothing(machine: Any, card: str) -> None:
    """Even with every shared node there: render nodes, kfd and VFIO groups say nothing of whose they are."""
    machine.pci(*NOT_ACCELERATORS[card], render="renderD128")
    for node in ("/dev/kfd", "/dev/dri/renderD128", "/dev/vfio/0", "/dev/accel/accel0", "/dev/dxg"):
        machine.node(node)
    assert known(machine) == {}


def test_a_card_is_not_usable_through_anothers_render_node(machine: Any) -> None:
    machine.pci(0x8086, 0x4680, VGA, render="renderD128")  # integrated: its node is there
    machine.pci(0x8086, 0xE20B, VGA, render="renderD129")  # discrete: its node is not
    machine.node("/dev/dri/renderD128")
    assert known(machine)["xpu"].presence is Presence.INACCESSIBLE


def test_hardware_without_a_pci_bus_is_seen_by_nodes(machine: Any) -> None:
    machine.node("/dev/dxg")
    assert known(machine) == {}
    machine.node("/usr/lib/wsl/lib/libcuda.so.1")
    assert known(machine)["cuda"].presence is Presence.USABLE


@pytest.mark.parametrize(
    ("value", "presence"),
    [("", Presence.HIDDEN), ("-1", Presence.HIDDEN), (" ", Presence.HIDDEN), ("-1,0", Presence.HIDDEN)]
    + [(value, Presence.USABLE) for value in ("0", "0,1", "GPU-1234", "0,-1")],
)
def test_an_empty_visibility_variable_hides(machine: Any, value: str, presence: Presence) -> None:
    machine.nvidia()
    item = known(machine, {"CUDA_VISIBLE_DEVICES": value})["cuda"]
    assert item.presence is presence
    if presence is Presence.HIDDEN:
        assert f"hidden by CUDA_VISIBLE_DEVICES={value!r}" in item.line()
        assert "unset CUDA_VISIBLE_DEVICES" in item.remedy


def test_minus_one_hides_only_where_the_vendor_says_so() -> None:
    assert Visibility(variables=("V",)).hidden_by({"V": "-1"}) is None
    assert Visibility(variables=("V",), none=("-1",)).hidden_by({"V": "-1"}) == "V='-1'"
    assert Visibility(variables=("V",)).hidden_by({}) is None
    assert Visibility(variables=("V", "W")).hidden_by({"V": "0", "W": ""}) == "W=''"


def test_a_node_that_may_not_be_opened_is_inaccessible_with_the_group_as_remedy(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.pci(0x1002, 0x74A1, ACCELERATOR, render="renderD128")
    machine.node("/dev/kfd")
    machine.node("/dev/dri/renderD128")
    monkeypatch.setattr(Machine, "allowed", lambda self, path: path != "/dev/kfd")
    item = known(machine)["rocm"]
    assert item.presence is Presence.INACCESSIBLE
    assert "no permission to open /dev/kfd" in item.line()
    assert "group that owns /dev/kfd" in item.remedy and "--group-add" in item.remedy


def test_unreadable_sysfs_is_absent_not_an_error(tmp_path: Path) -> None:
    here = Machine(tmp_path / "nowhere", {})
    signs = HardwareSigns(present=parse_sign({"pci": {"vendor": "0x1234"}}, "x"))
    assert probe(signs, here, device_kind="x", title="x").presence is Presence.ABSENT
    folder = tmp_path / "sys/bus/pci/devices/0000:00:00.0"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text("garbage\n")
    assert probe(signs, Machine(tmp_path, {}), device_kind="x", title="x").presence is Presence.ABSENT


def test_a_root_with_glob_characters_is_taken_literally(tmp_path: Path) -> None:
    root = tmp_path / "ro[o]t*"
    (root / "dev").mkdir(parents=True)
    (root / "dev/thing0").touch()
    assert Machine(root, {}).find("/dev/thing*") == ["/dev/thing0"]


def test_looking_at_a_large_machine_is_cheap(machine: Any) -> None:
    """400 devices, the whole table, in far less than the 200 ms asserted (the aim is 20)."""
    for index in range(400):
        machine.pci(0x8086, 0x2000 + index, 0x088000)
    machine.nvidia()
    known(machine)
    start = time.perf_counter()
    assert list(known(machine)) == ["cuda"]
    assert time.perf_counter() - start < 0.2


def test_the_table_names_an_extra_for_every_platform() -> None:
    rows = {row.platform: row for row in known_hardware()}
    assert set(rows) == {"cuda", "rocm", "xpu", "tpu", "ascend", "gaudi", "cpu"}
    assert all(row.extra == name for name, row in rows.items())
    assert [name for name, row in rows.items() if row.signs is None] == ["cpu"]


def test_a_bad_table_names_file_row_and_key(tmp_path: Path) -> None:
    file = tmp_path / "table.toml"
    file.write_text('[[hardware]]\nplatform = "x"\ntitle = "X"\nextra = "x"\nusable = {node = "/dev/x"}\n')
    with pytest.raises(ConfigError, match=r"table.toml hardware\[0\]: key 'present' is missing"):
        known_hardware(file)
