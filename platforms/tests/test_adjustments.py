"""Adjustments and the ledger: applied as data, refused under strict, shown with who and why; hooks and their freeze."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from tenon_platforms.adjustments import Adjustment, Ledger
from tenon_platforms.errors import ConfigError, PluginError
from tenon_platforms.hookspecs import ControlPlane, hookimpl

pytestmark = pytest.mark.unit

CONFIG = {"block_size": 16, "max_num_seqs": 256, "enable_prefix_caching": True}


def adjustment(
    field: str = "block_size",
    requested: Any = 16,
    effective: Any = 128,
    severity: Literal["performance", "semantic"] = "performance",
    who: str = "thing",
) -> Adjustment:
    return Adjustment(
        field=field, requested=requested, effective=effective, reason="its kernel", severity=severity, who=who
    )


def test_apply_returns_a_new_configuration_and_enters_the_ledger() -> None:
    ledger = Ledger()
    effective = ledger.apply(CONFIG, [adjustment(), adjustment("max_num_seqs", 256, 64, "semantic")])
    assert effective == {"block_size": 128, "max_num_seqs": 64, "enable_prefix_caching": True}
    assert CONFIG["block_size"] == 16
    assert [item.field for item in ledger.entries] == ["block_size", "max_num_seqs"]


def test_lines_show_requested_effective_who_and_why_aligned() -> None:
    ledger = Ledger()
    assert ledger.lines() == []
    ledger.apply(CONFIG, [adjustment(), adjustment("max_num_seqs", 256, 64, "semantic")])
    first, second = ledger.lines()
    assert "16 -> 128" in first and "thing [performance]" in first and first.endswith("its kernel")
    assert "256 -> 64" in second and "[semantic]" in second
    assert first.index("->") - second.index("->") == len("16") - len("256")
    assert first.index("thing") == second.index("thing")


@pytest.mark.parametrize("by_add", [True, False])
def test_strict_refuses_what_changes_meaning_and_enters_nothing(by_add: bool) -> None:
    ledger = Ledger(strict=True)
    semantic = adjustment("enable_prefix_caching", True, False, "semantic")
    with pytest.raises(ConfigError) as error:
        if by_add:
            ledger.add(semantic)
        else:
            ledger.apply(CONFIG, [adjustment(), semantic])
    text = str(error.value)
    assert "--strict" in text and "enable_prefix_caching: True -> False (thing, semantic): its kernel" in text
    assert "block_size" not in text and "remedy" in text and ledger.entries == []
    ledger.add(adjustment())
    assert len(ledger.entries) == 1


def test_an_unknown_field_names_who() -> None:
    with pytest.raises(PluginError, match=r"'thing' adjusts 'blok'.*no field"):
        Ledger().apply(CONFIG, [adjustment("blok")])


def test_two_that_disagree_are_both_named() -> None:
    with pytest.raises(PluginError) as error:
        Ledger().apply(CONFIG, [adjustment(who="one"), adjustment(effective=64, requested=16, who="two")])
    for word in ("'one' set 128", "'two' wants 64", "remedy: set block_size"):
        assert word in str(error.value)


def test_two_that_agree_count_once_and_a_chain_is_followed() -> None:
    ledger = Ledger()
    same = [adjustment(who="one"), adjustment(who="two"), adjustment(requested=128, effective=256, who="three")]
    assert ledger.apply(CONFIG, same)["block_size"] == 256
    assert [item.who for item in ledger.entries] == ["one", "three"]


def test_one_from_another_configuration_is_refused() -> None:
    with pytest.raises(PluginError, match="from 32, but it is 16"):
        Ledger().apply(CONFIG, [adjustment(requested=32)])


def test_an_adjustment_is_frozen_and_says_why() -> None:
    with pytest.raises(AttributeError):
        adjustment().field = "other"  # type: ignore[misc]
    with pytest.raises(PluginError, match=r"severity 'fatal'.*performance, semantic"):
        adjustment(severity="fatal")  # type: ignore[arg-type]
    with pytest.raises(PluginError, match="no who"):
        adjustment(who="")


class Vendor:
    """A plugin with hooks; it takes a subset of a hook's arguments."""

    def __init__(self) -> None:
        self.told: list[str] = []

    @hookimpl
    def tenon_platform_adjustments(self, config: dict[str, Any]) -> list[Adjustment]:
        return [adjustment(requested=config["block_size"])]

    @hookimpl
    def tenon_platform_loaded(self, platform: Any) -> None:
        self.told.append("loaded")

    @hookimpl
    def tenon_ready(self, plan: Any) -> None:
        self.told.append("ready")


def test_hooks_are_called_counted_and_refused_after_ready() -> None:
    plane, vendor = ControlPlane(), Vendor()
    plane.register(vendor, name="vendor")
    plane.platform_loaded(object())  # type: ignore[arg-type]
    assert plane.adjustments(CONFIG, object()) == [adjustment()]  # type: ignore[arg-type]
    plane.ready({"plan": 1})
    assert vendor.told == ["loaded", "ready"]
    counted = dict(plane.calls)
    assert counted == {"tenon_platform_loaded": 1, "tenon_platform_adjustments": 1, "tenon_ready": 1}
    with pytest.raises(PluginError, match="'tenon_platform_adjustments' was called after ready"):
        plane.adjustments(CONFIG, object())  # type: ignore[arg-type]
    assert plane.num_late_calls == 1 and dict(plane.calls) == counted
    plane.platform_loaded(object())  # type: ignore[arg-type]  # a second engine of the process starts
    assert not plane.is_frozen


@pytest.mark.parametrize("name", ["tenon_nonsense", "tenon_ready"])
def test_hooks_that_fit_none_are_refused_and_leave_nothing(name: str) -> None:
    """An unknown hook; a known one with an argument that it does not have."""

    def wrong(self: Any, nonsense: Any) -> None:
        raise AssertionError("called")

    plugin = type("Wrong", (), {name: hookimpl(wrong)})()
    plane = ControlPlane()
    with pytest.raises(PluginError, match=r"wrong.*refused") as error:
        plane.register(plugin, name="wrong")
    assert name in str(error.value)
    plane.ready({})


def test_the_control_plane_needs_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys, tenon_platforms.hookspecs, tenon_platforms.adjustments as a; tenon_platforms.hookspecs"
        ".control_plane().ready({}); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
