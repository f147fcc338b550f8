"""`--platform-opt`: typed by the manifest, noted where another platform is meant, refused where unknown."""

from __future__ import annotations

from typing import Any

import pytest

from tenon_platforms.errors import ConfigError
from tenon_platforms.manifest import Manifest, read_manifests
from tenon_platforms.options import parse_platform_options

pytestmark = pytest.mark.unit

TOML = """
name = "thing"
contract = ">=0.1,<1"
device_kind = "thing"
entry = "tenon_thing.platform:Platform"
hidden = true
[options]
blocks = {type = "int", default = 4}
share = {type = "float"}
fast = {type = "bool", default = false}
mode = {type = "str", choices = ["eager", "capture"], default = "eager", help = "how steps run"}
"""


@pytest.fixture
def manifest(site: Any) -> Manifest:
    site.install("thing", toml=TOML)
    item = read_manifests(site.path).named("thing")
    assert isinstance(item, Manifest), item
    return item


def test_values_are_typed_and_defaults_filled_in(manifest: Manifest) -> None:
    assert parse_platform_options([], manifest) == ({"blocks": 4, "fast": False, "mode": "eager"}, ())
    texts = ["thing.blocks=-8", "thing.share=1e-2", "thing.fast=ON", "thing.mode=capture"]
    values, notes = parse_platform_options(texts, manifest)
    assert values == {"blocks": -8, "share": 0.01, "fast": True, "mode": "capture"} and notes == ()
    assert type(values["blocks"]) is int and type(values["fast"]) is bool


def test_options_of_other_platforms_are_noted_and_ignored(manifest: Manifest) -> None:
    values, notes = parse_platform_options(["other.what=ever", "thing.blocks=5"], manifest)
    assert values["blocks"] == 5
    assert notes == ("--platform-opt other.what=ever is not used: the selected platform is 'thing'",)


def test_the_last_of_two_wins_and_the_first_is_noted(manifest: Manifest) -> None:
    values, notes = parse_platform_options(["thing.blocks=5", "thing.blocks=6"], manifest)
    assert values["blocks"] == 6 and len(notes) == 1 and "thing.blocks=5 is not used" in notes[0]


def test_an_unknown_key_lists_the_known_and_guesses(manifest: Manifest) -> None:
    with pytest.raises(ConfigError) as error:
        parse_platform_options(["thing.block=5"], manifest)
    text = str(error.value)
    assert "--platform-opt thing.block" in text and "tenon-thing 1.0" in text
    assert "blocks, fast, mode, share" in text and "did you mean thing.blocks" in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("thing.blocks=four", ["'four'", "an integer", "default 4"]),
        ("thing.blocks=1.5", ["'1.5'", "an integer"]),
        ("thing.share=nan", ["'nan'", "a finite number"]),
        ("thing.fast=maybe", ["'maybe'", "true or false"]),
        ("thing.mode=lazy", ["'lazy'", "eager, capture"]),
        ("thing.blocks=", ["''", "an integer"]),
    ],
)
def test_a_bad_value_names_flag_value_and_what_is_expected(manifest: Manifest, text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        parse_platform_options([text], manifest)
    for word in [text.partition("=")[0], *words]:
        assert word in str(error.value)


@pytest.mark.parametrize("text", ["thing", "thing=1", "thing.blocks", ".blocks=1", "thing.=1", ""])
def test_a_malformed_text_says_the_form(manifest: Manifest, text: str) -> None:
    with pytest.raises(ConfigError, match=r"NAME\.KEY=VALUE") as error:
        parse_platform_options([text], manifest)
    assert repr(text) in str(error.value)


def test_a_value_may_hold_equals_signs_and_be_empty(site: Any) -> None:
    site.install("text", toml=TOML.replace('"thing"', '"text"').replace('type = "float"', 'type = "str"'))
    item = read_manifests(site.path).named("text")
    assert isinstance(item, Manifest)
    values, _ = parse_platform_options(["text.share=a=b"], item)
    assert values["share"] == "a=b"
    assert parse_platform_options(["text.share="], item)[0]["share"] == ""
