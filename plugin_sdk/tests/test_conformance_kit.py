"""The kit itself: every op is covered, exceptions are strict and expire, reports say what happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from mutations.engine_bugs import UNCLAIMED
from mutations.installed import install
from torch.nn.functional import rms_norm

from tenon_platforms.builtin.reference.platform import ReferencePlatform
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError, PluginError
from tenon_platforms.kernel import Kernel, No
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.linear import MergedLinearSpec
from tenon_platforms.ops.norm import RMSNormSpec
from tenon_platforms.ops.references import REFERENCES
from tenon_platforms.ops.table import OpTable
from tenon_plugin_sdk.conformance.exceptions import read_exceptions
from tenon_plugin_sdk.conformance.levels.l2.attention import attention_specs
from tenon_plugin_sdk.conformance.profile import QUICK, Profile
from tenon_plugin_sdk.conformance.ranks.group import RankGroup
from tenon_plugin_sdk.conformance.registry import (
    LEVELS,
    Case,
    Check,
    ConformanceError,
    NotApplicableError,
    all_cases,
    checks_of,
    levels_up_to,
)
from tenon_plugin_sdk.conformance.report.progress import EVERY_S, Progress, elapsed
from tenon_plugin_sdk.conformance.subject import Subject

pytestmark = pytest.mark.unit
ENTRY = 'check: "{check}", reason: "known", link: "https://example.com/1", expires: {expires}'


def run_kit(folder: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, object], str]:
    """The kit's command on the reference, its JSON and its page."""
    report, html = folder / "report.json", folder / "report.html"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tenon_plugin_sdk.conformance.plugin", "--pyargs"]
    command += ["tenon_plugin_sdk.conformance", "--platform", "reference", "--report", str(report), "--html", str(html)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=folder, check=False)
    return done, json.loads(report.read_text()) if report.exists() else {}, html.read_text() if html.exists() else ""


def exceptions_file(folder: Path, check: str, expires: str) -> str:
    path = folder / "conformance.yaml"
    path.write_text("exceptions:\n  - {" + ENTRY.format(check=check, expires=expires) + "}\n")
    return str(path)


def test_every_op_has_a_check() -> None:
    names = {check.name for check in checks_of("L2")}
    assert set(REFERENCES) <= names, sorted(set(REFERENCES) - names)


def test_addresses_are_unique() -> None:
    subject = Subject.of(ReferencePlatform())
    addresses = [check.address(case) for check, case in all_cases(subject, QUICK, LEVELS)]
    assert len(addresses) == len(set(addresses)) > 200


def test_levels_by_name() -> None:
    assert levels_up_to("L1") == ["L0", "L1"]
    assert levels_up_to("L1,L3") == ["L1", "L3"]
    assert levels_up_to("all") == list(LEVELS)
    with pytest.raises(ValueError, match="L9"):
        levels_up_to("L9")


def test_a_run_leaves_a_table_a_file_and_a_page(tmp_path: Path) -> None:
    done, report, page = run_kit(tmp_path, "--level", "L1")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "reference conforms up to L1 (device)" in done.stdout
    assert "L1 device: 1 of " not in done.stdout  # a quick run tells nothing on its way
    assert report["highest_level"] == "L1"
    assert report["machine"]["versions"]["torch"]  # type: ignore[index]
    assert "Conforms up to <b>L1 (device)</b>" in page and "<script" not in page and "http" not in page


def test_a_long_run_tells_where_it_is() -> None:
    first, second = (Check(level=level, name="any", what="", run=lambda *_: None) for level in ("L1", "L2"))
    progress = Progress.of([first, first, second])
    begin = progress.started
    assert progress.begin(first, "L1/any/a", begin) == "[0:00] L1 device: 1 of 2, 1 of 3 in all: L1/any/a"
    assert progress.begin(first, "L1/any/b", begin + 1) is None
    late = progress.begin(second, "L2/any", begin + 2)
    assert late == "[0:02] L2 ops: 1 of 1, 3 of 3 in all: L2/any"
    assert elapsed(3723) == "1:02:03"


def test_a_line_comes_back_after_a_while() -> None:
    check = Check(level="L1", name="any", what="", run=lambda *_: None)
    progress = Progress.of([check, check])
    progress.begin(check, "L1/any/a", progress.started)
    line = progress.begin(check, "L1/any/b", progress.started + EVERY_S)
    assert line == f"[{elapsed(EVERY_S)}] L1 device: 2 of 2, 2 of 2 in all: L1/any/b"


def test_a_run_of_several_seeds_shows_progress(tmp_path: Path) -> None:
    done, _, _ = run_kit(tmp_path, "--level", "L1,", "--seeds", "2")
    assert "L1 device: 1 of " in done.stdout


class WatchedProfile(Profile):
    """A profile that remembers whether it was asked for its seed."""

    asked: ClassVar[bool] = False

    def __getattribute__(self, name: str) -> Any:
        if name in ("seed", "salted"):
            type(self).asked = True
        return super().__getattribute__(name)


@pytest.mark.parametrize("level", ["L2", "L3"])
def test_what_is_said_to_draw_draws(level: str) -> None:
    """Twenty seeds are twenty looks only where a check's inputs come from the profile's seed."""
    subject = Subject.of(ReferencePlatform())
    profile = WatchedProfile(name="least", examples=1, replays=1, soak=1, draws=100, repeats=1)
    for check in checks_of(level):
        case = next(iter(check.cases_of(subject, QUICK)), None)
        if case is None:
            continue
        WatchedProfile.asked = False
        with suppress(NotApplicableError):
            check.run(subject, profile, case)
            assert check.is_drawn == WatchedProfile.asked, f"{check.level}/{check.name}"


class BrokenGroup:
    """Ranks whose all_reduce fails at once, whoever is there."""

    alignment = 1

    def values(self, op: str, **order: Any) -> list[Any]:
        if op == "all_reduce":
            raise ConformanceError("rank 0 in all_reduce: no backend for this device")
        return []

    def ask(self, op: str, **order: Any) -> list[dict[str, Any]]:
        return [{"error": "no backend for this device"}]

    def ask_rest(self, op: str, place: int, **order: Any) -> list[dict[str, Any]]:
        return [{"error": "no backend for this device"}]

    def end_one(self, place: int) -> None: ...

    def kill(self) -> None: ...


def test_an_operation_that_always_fails_is_no_answer_to_a_missing_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RankGroup, "of", lambda subject, size: BrokenGroup())
    check = next(check for check in checks_of("L5") if check.name == "hang")
    with pytest.raises(ConformanceError, match="all_reduce: no backend"):
        check.run(Subject.of(ReferencePlatform()), QUICK, Case(id="", value=2))


def test_a_failure_says_how_to_see_it_again(tmp_path: Path) -> None:
    path = os.pathsep.join([str(install()), *sys.path])
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tenon_plugin_sdk.conformance.plugin", "--pyargs"]
    command += ["tenon_plugin_sdk.conformance", "--platform", "planted", "--platform-opt"]
    command += ["bug=refuses without a remedy", "-k", "unclaimed", "--level", "L6,", "--report", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 1, done.stdout[-3000:]
    (failed,) = [one for one in json.loads(report.read_text())["checks"] if one["address"] == UNCLAIMED]
    assert "is refused without a remedy" in failed["text"].splitlines()[0]
    assert f'-k "{UNCLAIMED}" --first-seed 0' in failed["text"]


def test_an_exception_that_is_not_needed_fails(tmp_path: Path) -> None:
    path = exceptions_file(tmp_path, "L1/faults", "2999-01-01")
    done, report, page = run_kit(tmp_path, "--level", "L1,", "--exceptions", path)
    assert done.returncode == 1
    assert report["levels"]["L1"]["failed"] == 1  # type: ignore[index]
    assert "remove the exception" in page


def test_an_exception_that_expired_fails(tmp_path: Path) -> None:
    path = exceptions_file(tmp_path, "L1/faults", "2020-01-01")
    done, _, page = run_kit(tmp_path, "--level", "L1,", "--exceptions", path)
    assert done.returncode == 1
    assert "expired on 2020-01-01" in page


def test_an_exception_that_matches_nothing_fails(tmp_path: Path) -> None:
    path = exceptions_file(tmp_path, "L1/no_such_check", "2999-01-01")
    done, _, page = run_kit(tmp_path, "-k", "exceptions", "--level", "L0", "--exceptions", path)
    assert done.returncode == 1
    assert "match no check: L1/no_such_check" in page


@pytest.mark.parametrize("text", ["exceptions: {}", "other: []", "exceptions: [{check: x}]", ":", "exceptions: [1]"])
def test_a_malformed_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "conformance.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"conformance\.yaml"):
        read_exceptions(path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--platform", "nobody"), "no platform is named 'nobody'"),
        (("--level", "L9"), "'L9' is no level"),
        (("--platform-opt", "x=1"), "has no option x"),
    ],
)
def test_a_wrong_option_is_told(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done, _, _ = run_kit(tmp_path, *arguments)
    assert done.returncode != 0
    assert said in done.stdout + done.stderr


def test_a_part_of_a_run_says_nothing_of_a_level(tmp_path: Path) -> None:
    done, report, page = run_kit(tmp_path, "-k", "L0/opens or L1/faults", "--level", "L1")
    assert done.returncode == 0
    assert "a part of the checks: none failed" in done.stdout and "conforms up to" not in done.stdout
    assert "L2 ops" not in done.stdout and report["highest_level"] is None
    assert "a part of the checks: none failed" in page


def test_the_summary_says_whose_kernels_ran(tmp_path: Path) -> None:
    done, report, _ = run_kit(tmp_path, "-k", "L2/rms_norm/float32-1", "--level", "L2,")
    assert "kernels of its own that ran: none, all were the reference" in done.stdout
    assert report["kernels"] == {"served": [], "silent": {}}


class Vendor(ReferencePlatform):
    """One norm of its own, an attention that refuses, and a product whose offer raises."""

    name: ClassVar[str] = "vendor"

    def register_ops(self, table: OpTable, device: Device) -> None:
        norm = Kernel(name="vendor.norm", run=lambda x, weight: rms_norm(x, (x.shape[-1],), weight, 1e-6))
        table.offer(RMSNormSpec, "vendor.norm", lambda spec: norm)
        table.offer(AttentionSpec, "vendor.attention", lambda spec: No("not written yet"))
        table.offer(MergedLinearSpec, "vendor.linear", lambda spec: spec.no_such_field)


def test_own_kernels_and_offers_that_serve_nothing_are_told_apart() -> None:
    subject = Subject.of(Vendor())
    assert subject.own_kernels() == ((), {})
    subject.choose(RMSNormSpec(hidden=8, eps=1e-6, dtype=DType.FLOAT32))
    subject.choose(attention_specs((DType.FLOAT32,), ())[0].value, subject.device)
    assert subject.own_kernels() == (("vendor.norm",), {"vendor.attention": "not written yet"})


def test_an_offer_that_raises_fails_its_checks_and_no_collection() -> None:
    subject = Subject.of(Vendor())
    addresses = {check.address(case): (check, case) for check, case in all_cases(subject, QUICK, ["L2", "L3"])}
    assert "L2/rms_norm/float32-64" in addresses
    check, case = addresses["L3/replay"]
    with pytest.raises(PluginError, match=r"'vendor\.linear' of vendor, asked for merged_linear.*no_such_field"):
        check.run(subject, QUICK, case)


def test_a_platform_that_does_not_open_is_told_at_every_level() -> None:
    subject = Subject(name="vendor", error="no driver")
    addresses = [check.address(case) for check, case in all_cases(subject, QUICK, ["L2"])]
    assert "L0/opens" in addresses and not any(address.startswith("L2") for address in addresses)
