"""`--part K/N` and `tenon-sdk join-reports`: parts are a partition, and joined they are the whole run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tenon_platforms.builtin.reference.platform import ReferencePlatform
from tenon_platforms.conformance_record import read_records
from tenon_platforms.errors import ConfigError
from tenon_plugin_sdk.conformance.part import Part
from tenon_plugin_sdk.conformance.plugin import Run
from tenon_plugin_sdk.conformance.profile import QUICK
from tenon_plugin_sdk.conformance.registry import checks_of
from tenon_plugin_sdk.conformance.report.joined import join
from tenon_plugin_sdk.conformance.report.results import Entry, Results, to_json
from tenon_plugin_sdk.conformance.subject import Subject
from tenon_plugin_sdk.scaffold.cli import main

pytestmark = pytest.mark.unit
STOP = """
def pytest_runtest_logreport(report):
    if report.when == "teardown":
        raise KeyboardInterrupt
"""


def run_kit(folder: Path, *arguments: str, report: str = "report.json") -> tuple[int, str, dict[str, Any]]:
    """The kit on the reference: exit code, what it said, its JSON."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tenon_plugin_sdk.conformance.plugin", "--pyargs"]
    command += ["tenon_plugin_sdk.conformance", "--platform", "reference", "--report", report, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    path = folder / report
    return done.returncode, done.stdout + done.stderr, json.loads(path.read_text()) if path.exists() else {}


def timeless(report: dict[str, Any]) -> dict[str, Any]:
    """A report without what differs from run to run."""
    checks = [{**check, "seconds": 0} for check in report["checks"]]
    return {**report, "seconds": 0, "checks": checks}


def addresses(report: dict[str, Any]) -> list[str]:
    return [check["address"] for check in report["checks"]]


def test_two_parts_joined_are_the_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "parts"))
    paths = [tmp_path / f"part-{number}.json" for number in (1, 2)]
    parts = []
    for number, path in enumerate(paths, 1):
        _, said, report = run_kit(tmp_path, "--level", "L0,L1", "--part", f"{number}/2", report=path.name)
        assert "a part of the checks" in said and report["highest_level"] is None and not report["whole"]
        parts.append(report)
    assert read_records("reference") == []  # a part is nothing for `tenon doctor` to show
    out, page = tmp_path / "new" / "all.json", tmp_path / "all.html"
    assert main(["join-reports", "--report", str(out), "--html", str(page), *map(str, reversed(paths))]) == 0
    (joined_record,) = read_records("reference")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "whole"))
    _, _, whole = run_kit(tmp_path, "--level", "L0,L1")
    (record,) = read_records("reference")

    assert not set(addresses(parts[0])) & set(addresses(parts[1]))
    assert sorted(addresses(parts[0]) + addresses(parts[1])) == sorted(addresses(whole))
    assert addresses(parts[0]) == addresses(whole)[::2]
    joined = json.loads(out.read_text())
    assert timeless(joined) == timeless(whole)
    assert joined["seconds"] == max(part["seconds"] for part in parts)
    assert joined["highest_level"] == "L1" and "Conforms up to <b>L1 (device)</b>" in page.read_text()
    assert replace(joined_record, when="") == replace(record, when="")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--part", "3/2"), "--part 3/2: expected K/N, the K-th of N parts"),
        (("--level", "L0,", "--part", "99/99"), "--part 99/99: there are only 8 checks"),
        (("--part", "1/2", "--baseline", "any.json"), "a part has not all figures"),
    ],
)
def test_a_wrong_part_is_told(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    code, output, report = run_kit(tmp_path, *arguments)
    assert code != 0 and "UsageError" in output and said in output
    assert not report


def test_a_run_that_was_stopped_claims_no_level(tmp_path: Path) -> None:
    (tmp_path / "stopping.py").write_text(STOP)
    _, said, report = run_kit(tmp_path, "--level", "L1", "-p", "stopping")
    assert len(report["checks"]) == 1 and report["highest_level"] is None
    assert "conforms up to" not in said


@pytest.mark.parametrize("text", ["", "2", "0/2", "3/2", "-1/2", "1/2/3", "a/b", "1/", "1.0/2"])
def test_what_names_no_part_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"--part {text}: expected K/N"):
        Part.parse(text)


def test_the_command_of_a_check_runs_that_one_check() -> None:
    subject, check = Subject.of(ReferencePlatform()), checks_of("L1")[0]
    (case, *_) = check.cases_of(subject, QUICK)
    run = Run(subject=subject, profile=QUICK, levels=["L1"], exceptions=(), results=results(part=Part.parse("1/2")))
    assert run.command(check, case, 0).endswith(f'--level L1, --profile quick -k "{check.address(case)}"')


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_parts_are_a_partition(of: int) -> None:
    items = list(range(20))
    taken = [Part(number=number, of=of).take(items) for number in range(1, of + 1)]
    assert sorted(item for part in taken for item in part) == items
    for number, part in enumerate(taken, 1):
        assert [Part(number=number, of=of).place(index) for index in range(len(part))] == part


MACHINE = {
    "system": "Linux",
    "processors": 8,
    "driver": "1",
    "versions": {"tenon-core": "1"},
    "device": {"name": "d", "arch": "a", "memory": 1},
}


def results(*checks: str, **changed: Any) -> Results:
    """A report of checks by address, all passed."""
    entries = [
        Entry(level=one[:2], check=one[3:], what="", case="", address=one, outcome="passed", seconds=1.0)
        for one in checks
    ]
    made = Results(platform="acme", profile="quick", options={"streams": 1}, entries=entries, machine=MACHINE)
    return replace(made, **changed)


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[Results], Path]:
    """A report's file: 0.json, 1.json, as they come."""

    def store(made: Results) -> Path:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text(to_json(made))
        return path

    return store


def part(number: int, of: int, *levels: str, checks: int) -> Part:
    return Part(number=number, of=of, levels=levels, checks=checks)


def test_parts_and_single_levels_join(stored: Callable[[Results], Path]) -> None:
    paths = [
        stored(results("L2/a", "L2/c", whole=False, part=part(1, 2, "L2", checks=3), seconds=5.0)),
        stored(results("L5/e", seconds=10.0)),
        stored(results("L2/b", whole=False, part=part(2, 2, "L2", checks=3), seconds=7.0)),
        stored(results("L0/z", "L1/y", seconds=100.0)),
    ]
    joined = join(paths)
    assert [entry.address for entry in joined.entries] == ["L0/z", "L1/y", "L2/a", "L2/b", "L2/c", "L5/e"]
    assert joined.whole and joined.highest() == "L2" and joined.seconds == 117.0


def test_an_offer_is_silent_where_no_part_served_it(stored: Callable[[Results], Path]) -> None:
    first = results("L2/a", served=("one", "two"), silent={"three": "no", "four": "never"})
    second = results("L2/b", served=("three",), silent={"two": "not here", "four": "not either"})
    joined = join([stored(first), stored(second)])
    assert joined.served == ("one", "three", "two") and joined.silent == {"four": "never"}


def test_figures_join(stored: Callable[[Results], Path]) -> None:
    first = results("L7/a", measured={"peak": {"value": 1.0, "unit": "B/s"}})
    second = results("L7/b", measured={"peak": {"value": 2.0, "unit": "B/s"}, "op": {"value": 3.0, "unit": "s"}})
    assert join([stored(first), stored(second)]).measured == {**second.measured, **first.measured}


@pytest.mark.parametrize(
    ("made", "missing"),
    [
        ([results("L0/a", whole=False, part=part(1, 3, "L0", checks=5))], "part 2/3, 3/3 of L0"),
        ([results("L0/a", whole=False)], "0.json does not say that it has all checks"),
        (
            [
                results("L0/a", whole=False, part=part(1, 2, "L0", checks=3)),
                results("L0/b", whole=False, part=part(2, 2, "L0", checks=3)),
            ],
            "1 checks that the 2 parts of L0 left out or did not reach",
        ),
        (
            [
                results("L0/a", whole=False, part=part(1, 2, "L0", checks=2)),
                results("L1/b", whole=False, part=part(2, 2, "L1", checks=2)),
            ],
            "part 2/2 of L0; part 1/2 of L1",
        ),
    ],
)
def test_what_is_missing_is_told(
    stored: Callable[[Results], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    made: list[Results],
    missing: str,
) -> None:
    paths = [str(stored(one)) for one in made]
    out, page = tmp_path / "all.json", tmp_path / "all.html"
    assert main(["join-reports", "--report", str(out), "--html", str(page), *paths]) == 0
    assert missing in capsys.readouterr().out and missing in page.read_text()
    report = json.loads(out.read_text())
    assert not report["whole"] and report["highest_level"] is None and missing in "; ".join(report["missing"])


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"platform": "other"}, "platform is 'other'"),
        ({"profile": "full"}, "profile is 'full'"),
        ({"seeds": 2}, "seeds is 2"),
        ({"first_seed": 2}, "first_seed is 2"),
        ({"options": {"streams": 2}}, "options.streams is 2"),
        ({"options": {}}, "options.streams is None"),
        ({"machine": {**MACHINE, "driver": "2"}}, "machine.driver is '2'"),
        ({"machine": {**MACHINE, "versions": {"tenon-core": "2"}}}, "machine.versions.tenon-core is '2'"),
        ({"machine": {**MACHINE, "device": {"name": "e", "arch": "a"}}}, "machine.device.name is 'e'"),
    ],
)
def test_reports_of_different_runs_do_not_join(
    stored: Callable[[Results], Path], capsys: pytest.CaptureFixture[str], changed: dict[str, Any], field: str
) -> None:
    paths = [stored(results("L0/a")), stored(results("L0/b", **changed))]
    out = paths[0].parent / "all.json"
    assert main(["join-reports", "--report", str(out), *map(str, paths)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {paths[1]}: {field}, in {paths[0]} it is ") and not out.exists()


def test_two_hosts_of_a_kind_join(stored: Callable[[Results], Path]) -> None:
    other = {**MACHINE, "processors": 4, "device": {"name": "d", "arch": "a", "memory": 2}}
    assert join([stored(results("L0/a")), stored(results("L0/b", machine=other))]).machine == MACHINE


def test_the_same_check_twice_does_not_join(stored: Callable[[Results], Path]) -> None:
    with pytest.raises(ConfigError, match=r"1\.json: L0/b came already, in .*0\.json"):
        join([stored(results("L0/a", "L0/b")), stored(results("L0/b", "L0/c"))])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1, "checks": [{}]}', '{"format": 2, "checks": []}'])
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "part.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"part\.json: no report of the conformance kit"):
        join([path])


def test_a_check_with_two_entries_counts_once(stored: Callable[[Results], Path]) -> None:
    """A test that passes and fails at its end, too."""
    joined = join([stored(results("L0/a", "L0/a", whole=False, part=part(1, 1, "L0", checks=2)))])
    assert joined.missing == ("1 checks that the 1 parts of L0 left out or did not reach",)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("machine",), {}),
        (("machine",), None),
        (("machine", "device"), None),
        (("options",), []),
        (("kernels", "silent"), None),
        (("seeds",), "1"),
        (("part", "number"), "a"),
    ],
)
def test_a_field_of_another_kind_is_told(stored: Callable[[Results], Path], path: tuple[str, ...], value: Any) -> None:
    file = stored(results("L0/one", part=part(1, 2, "L0", checks=2)))
    data = json.loads(file.read_text())
    held = data
    for name in path[:-1]:
        held = held[name]
    held[path[-1]] = value
    file.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="no report of the conformance kit"):
        join([file])
