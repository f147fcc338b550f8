"""Kept conformance results: exact keys, the last of each, and files that are no results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenon_platforms.conformance_record import (
    KEPT,
    ConformanceRecord,
    driver_text,
    last_record,
    read_records,
    record_file,
    write_record,
)

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def record(plugin: str = "1.0", highest: str | None = "L7", **more: str) -> ConformanceRecord:
    values = {"core": "0.1", "driver": "thing 3", "profile": "quick", "when": "2026-11-29T20:00:00+00:00", **more}
    return ConformanceRecord(plugin=plugin, highest=highest, counts={"L0": {"failed": 0, "excused": 2}}, **values)


def test_the_result_of_exactly_these_versions_is_told() -> None:
    write_record("thing", record())
    write_record("thing", record("1.1", highest="L2"))
    found, line = last_record("thing", "0.1", "1.0", "thing 3")
    assert found == record() and "up to L7 (quick profile, 0 failed, 2 excused" in line


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("0.2", "1.0", "thing 3"), "core 0.1 (now 0.2)"),
        (("0.1", "2", "thing 3"), "plugin 1.0 (now 2)"),
        (("0.1", "1.0", "x"), "driver thing 3 (now x)"),
    ],
)
def test_a_result_of_other_versions_is_none(asked: tuple[str, str, str], said: str) -> None:
    write_record("thing", record())
    found, line = last_record("thing", *asked)
    assert found is None and said in line and "--platform thing" in line


def test_a_later_result_takes_the_place_of_an_earlier_one() -> None:
    write_record("thing", record())
    write_record("thing", record(highest=None))
    assert [one.highest for one in read_records("thing")] == [None]
    assert "conforms to no level" in last_record("thing", "0.1", "1.0", "thing 3")[1]


def test_the_oldest_go() -> None:
    for number in range(KEPT + 5):
        write_record("thing", record(str(number)))
    assert [one.plugin for one in read_records("thing")] == [str(KEPT + 4 - place) for place in range(KEPT)]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 9, "results": []}', '{"format": 1, "results": [{}]}'])
def test_a_broken_file_is_no_result(text: str) -> None:
    record_file("thing").parent.mkdir(parents=True)
    record_file("thing").write_text(text)
    assert last_record("thing", "0.1", "1.0", "thing 3")[1].startswith("never run here")
    assert write_record("thing", record()) is not None and len(read_records("thing")) == 1


def test_where_nothing_can_be_written_nothing_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert write_record("thing", record()) is None and read_records("thing") == []


def test_a_host_has_its_kernel_for_a_driver() -> None:
    assert driver_text("thing 3") == "thing 3" and driver_text("").split()[0] == __import__("platform").system()
