"""The kit itself: every op is covered, exceptions are strict and expire, reports say what happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutations.engine_bugs import UNCLAIMED
from mutations.installed import install

from tenon_platforms.builtin.reference.platform import ReferencePlatform
from tenon_platforms.errors import ConfigError
from tenon_platforms.ops.references import REFERENCES
from tenon_plugin_sdk.conformance.exceptions import read_exceptions
from tenon_plugin_sdk.conformance.profile import QUICK
from tenon_plugin_sdk.conformance.registry import LEVELS, all_cases, checks_of, levels_up_to
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
    assert report["highest_level"] == "L1"
    assert report["machine"]["versions"]["torch"]  # type: ignore[index]
    assert "Conforms up to <b>L1 (device)</b>" in page and "<script" not in page and "http" not in page


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
