"""Manifests: found for wheels and editable installs without an import, validated strictly, isolated from each other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tenon_platforms.errors import PluginError
from tenon_platforms.manifest import BrokenPlugin, Manifest, read_manifests

pytestmark = pytest.mark.unit

GOOD = """
name = "thing"
contract = ">=0.1,<1"
device_kind = "thing"
entry = "tenon_thing.platform:ThingPlatform"
priority = 7
extra = "thing"
docs = "https://example.org/thing"
[hardware]
present = {any = [{pci = {vendor = "0x1234", class = ["0x1200"], device = ["0x0001-0x000f"]}}, {node = "/dev/thing*"}]}
visibility = {variables = ["THING_VISIBLE"], none = ["-1"]}
[options.blocks]
type = "int"
default = 4
help = "blocks in flight"
"""


def found(site: Any, name: str = "thing") -> Manifest | BrokenPlugin:
    item = read_manifests(site.path).named(name)
    assert item is not None
    return item


def test_the_builtins_are_always_there(site: Any) -> None:
    manifests = read_manifests(site.path)
    assert [m.name for m in manifests.valid] == ["reference", "null"]
    null, reference = manifests.named("null"), manifests.named("reference")
    assert isinstance(null, Manifest) and null.hidden and not null.fallback
    assert isinstance(reference, Manifest) and reference.fallback


def test_builtin_code_says_what_its_manifest_says(site: Any) -> None:
    from importlib import import_module

    for manifest in read_manifests(site.path).valid:
        module, _, name = manifest.entry.partition(":")
        loaded = getattr(import_module(module), name)
        assert (loaded.name, loaded.contract) == (manifest.name, manifest.contract)


def test_a_wheel_is_read_through_its_files_and_nothing_is_imported(site: Any) -> None:
    site.install("thing", version="2.5", toml=GOOD)
    before = set(sys.modules)
    item = found(site)
    assert isinstance(item, Manifest)
    assert (item.distribution, item.version, item.priority, item.extra) == ("tenon-thing", "2.5", 7, "thing")
    assert item.options[0].default == 4
    assert item.hardware is not None and item.hardware.visibility.variables == ("THING_VISIBLE",)
    assert Path(item.path) == site.folder / "tenon_thing/platform.toml"
    assert not {name for name in set(sys.modules) - before if "thing" in name}


def test_an_editable_install_is_read_through_its_pth(site: Any, tmp_path: Path) -> None:
    source = tmp_path / "checkout/src"
    site.package("tenon_thing", GOOD, below=source)
    (site.folder / "_thing.pth").write_text(f"# comment\nimport os; os.environ['PTH_RAN'] = '1'\n{source}\n")
    site.dist_info("tenon-thing", "0.1", "[tenon.platforms]\nthing = tenon_thing\n", ["_thing.pth"])
    item = found(site)
    assert isinstance(item, Manifest) and Path(item.path) == source / "tenon_thing/platform.toml"
    import os

    assert "PTH_RAN" not in os.environ


@pytest.mark.parametrize("explicit", [True, False], ids=["path", "sys.path"])
def test_without_a_record_the_top_level_package_is_located(
    site: Any, explicit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nested package's parents raise when imported: only the top-level name is looked up."""
    site.package("tenon_kit.deep.thing", GOOD)
    site.dist_info("tenon-kit", "0.1", "[tenon.platforms]\nthing = tenon_kit.deep.thing\n", None)
    monkeypatch.syspath_prepend(str(site.folder))
    item = read_manifests(site.path if explicit else None).named("thing")
    assert isinstance(item, Manifest) and "tenon_kit" not in sys.modules


def test_a_missing_file_names_the_package_and_where_it_was_looked_for(site: Any) -> None:
    site.package("tenon_thing", None)
    site.dist_info("tenon-thing", "0.1", "[tenon.platforms]\nthing = tenon_thing\n", [])
    item = found(site)
    assert isinstance(item, BrokenPlugin)
    assert "tenon-thing 0.1 ships no tenon_thing/platform.toml" in item.reason
    assert str(site.folder / "tenon_thing/platform.toml") in item.reason


CHANGES = {
    "not TOML": ('name = "thing"', 'name = "thing', ["cannot be read as TOML"]),
    "unknown key": ("priority = 7", "priorty = 7", ["unknown key 'priorty'", "priority"]),
    "wrong type": ("priority = 7", 'priority = "7"', ["key 'priority' is '7'", "expected an integer"]),
    "bool as integer": ("priority = 7", "priority = true", ["key 'priority' is True", "expected an integer"]),
    "missing key": ('device_kind = "thing"', "", ["key 'device_kind' is missing", "expected a string"]),
    "no range": (">=0.1,<1", "one", ["key 'contract' is 'one'", ">=0.1,<1"]),
    "empty range": (">=0.1,<1", "", ["key 'contract' is ''"]),
    "bad entry": ("platform:Thing", "platform.Thing", ["key 'entry'", "expected module:object"]),
    "another name": ('name = "thing"', 'name = "other"', ["key 'name' is 'other'", "'thing'"]),
    "unknown sign": ('{node = "/dev/thing*"}', '{smell = "ozone"}', ["unknown kind of sign 'smell'", "node"]),
    "relative node": ("/dev/thing*", "dev/thing*", ["'dev/thing*'", "absolute path"]),
    "bad vendor": ('"0x1234"', '"1234"', ["key 'vendor' is '1234'", "0x and 4"]),
    "empty device range": ("0x0001-0x000f", "0x000f-0x0001", ["ends before it begins"]),
    "unknown pci key": ("vendor =", 'seller = "x", vendor =', ["unknown key 'seller'"]),
    "unknown hardware key": ("[hardware]", "[hardware]\nabsent = 1", ["[hardware]", "unknown key 'absent'"]),
    "option type": ('type = "int"', 'type = "complex"', ["[options] [blocks]", "'complex'", "bool, int, float, str"]),
    "option default": ("default = 4", 'default = "four"', ["[options] [blocks]", "'four'", "an integer"]),
    "option key": ("help =", "halp =", ["[options] [blocks]", "unknown key 'halp'"]),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_malformed_manifest_is_a_broken_plugin_and_stops_no_other(site: Any, case: str) -> None:
    old, new, words = CHANGES[case]
    assert old in GOOD
    site.install("thing", toml=GOOD.replace(old, new))
    site.install("fine", hardware='present = {node = "/dev/fine"}')
    manifests = read_manifests(site.path)
    assert isinstance(manifests.named("fine"), Manifest)
    item = manifests.named("thing")
    assert isinstance(item, BrokenPlugin) and item.owner == "tenon-thing 1.0"
    for word in [*words, "platform.toml"]:
        assert word in item.reason, item.reason


def test_a_manifest_without_hardware_must_be_fallback_or_hidden(site: Any) -> None:
    site.install("thing")
    site.install("host", extra="fallback = true")
    item = found(site)
    assert isinstance(item, BrokenPlugin) and "key 'present' is missing" in item.reason
    assert isinstance(found(site, "host"), Manifest)


def test_a_misspelled_hidden_is_named_and_not_what_follows_from_it(site: Any) -> None:
    site.install("thing", extra="hiden = true")
    item = found(site)
    assert isinstance(item, BrokenPlugin) and "unknown key 'hiden'" in item.reason


def test_unknown_keys_of_another_contract_are_merely_incompatible(site: Any) -> None:
    """A plugin of the future is told to be newer, not that its manifest is malformed."""
    site.install("thing", toml=GOOD.replace(">=0.1,<1", ">=3,<4").replace("priority = 7", 'novelty = "x"'))
    item = found(site)
    assert isinstance(item, Manifest) and not item.accepts_contract()


def test_a_broken_manifest_keeps_the_signs_that_can_still_be_read(site: Any) -> None:
    site.install("thing", toml=GOOD.replace("priority = 7", "priorty = 7"))
    item = found(site)
    assert isinstance(item, BrokenPlugin) and item.hardware is not None and item.device_kind == "thing"


@pytest.mark.parametrize(("first", "second"), [("thing", "thing"), ("null", None)], ids=["two plugins", "a builtin"])
def test_one_name_twice_names_both_owners(site: Any, first: str, second: str | None) -> None:
    site.install(first, dist="vendor-a", version="1.2", extra="hidden = true")
    if second is not None:
        site.install(second, dist="vendor-b", version="3.4", extra="hidden = true")
    with pytest.raises(PluginError) as error:
        read_manifests(site.path)
    text = str(error.value)
    assert f"{first!r}" in text and "vendor-a 1.2" in text and "pip uninstall" in text
    assert ("vendor-b 3.4" if second else "tenon-platforms") in text


def test_one_distribution_seen_twice_counts_once(site: Any, tmp_path: Path) -> None:
    """As imports do: the first on the path wins."""
    site.install("thing", version="2.0", toml=GOOD)
    other = type(site)(tmp_path / "older")
    other.folder.mkdir()
    other.install("thing", version="1.0", toml=GOOD)
    item = read_manifests([*site.path, *other.path]).named("thing")
    assert isinstance(item, Manifest) and item.version == "2.0"


@pytest.mark.parametrize("value", ["tenon_thing:Platform", "not a name", ""], ids=["object", "words", "empty"])
def test_a_bad_entry_point_is_a_broken_plugin(site: Any, value: str) -> None:
    site.dist_info("tenon-thing", "0.1", f"[tenon.platforms]\nthing = {value}\n", [])
    broken = read_manifests(site.path).broken
    assert len(broken) == 1 and "tenon-thing" in broken[0].reason


def test_garbage_in_entry_points_and_metadata_stops_nothing(site: Any) -> None:
    site.dist_info("tenon-junk", "0.1", "[tenon.platforms]\n\x00 no equals sign\n", [])
    site.dist_info("tenon-bare", "0.1", "[tenon.platforms]\nbare = tenon_bare\n", [], metadata=False)
    site.install("thing", toml=GOOD)
    manifests = read_manifests(site.path)
    assert isinstance(manifests.named("thing"), Manifest)
    assert {item.distribution.replace("_", "-") for item in manifests.broken} == {"tenon-junk", "tenon-bare"}


def test_a_manifest_survives_plain_data(site: Any) -> None:
    import json
    from dataclasses import replace

    site.install("thing", toml=GOOD)
    item = found(site)
    assert isinstance(item, Manifest)
    assert Manifest.from_dict(json.loads(json.dumps(item.to_dict()))) == replace(item, hardware=None)
