"""The kit itself: every op is covered, exceptions are strict and expire, reports say what happened."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
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
