"""`tenon doctor` and `tenon plugins`: every plugin's state, no torch in the parent, sick platforms reported."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenon_core.cli.doctor_child import check
from tenon_core.cli.platform_check import check_platform
from tenon_platforms.selection import Selection, SelectionRequest, select

pytestmark = pytest.mark.unit
STATES = {"absent hardware", "not selected", "incompatible", "broken", "selected"}


def test_the_parent_imports_no_torch_and_no_plugin() -> None:
    code = (
        "import json, sys\nfrom tenon_core.cli.main import run\n"
        "code = run(['doctor', '--platform', 'reference', '--json'])\n"
        "print('\\n' + json.dumps([code, sorted(sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report, _, last = done.stdout.rstrip().rpartition("\n")
    code_, modules = json.loads(last)
    found = json.loads(report)
    assert code_ == 0 and found["healthy"] and found["selected"] == "reference"
    assert found["platform"]["devices"] and found["platform"]["memory_total"] > 0  # so the child did load it
    assert not {name.partition(".")[0] for name in modules} & {"torch", "numpy", "tenon_cpu", "tenon_plugin_sdk"}


def test_every_plugin_has_one_state_and_a_reason(tenon: Callable[..., Any]) -> None:
    found = tenon("plugins", "--json").json()
    names = [item["name"] for item in found["platforms"]]
    assert {"reference", "null"} <= set(names) and len(names) == len(set(names))
    assert all(item["state"] in STATES and item["reason"] for item in found["platforms"])
    groups = found["groups"]
    engine = {"tenon.schedulers", "tenon.block_allocators", "tenon.models"}
    assert set(groups) == {*engine, "tenon.tool_parsers", "tenon.reasoning_parsers", "tenon.quantization"}
    assert "llama" in [item["name"] for item in groups["tenon.models"]]
    assert all(item["distribution"] and ":" in item["target"] for group in groups.values() for item in group)


def test_plugins_for_people(tenon: Callable[..., Any]) -> None:
    ran = tenon("plugins", "--platform", "null")
    assert ran.code == 0
    row = next(line for line in ran.out.splitlines() if line.strip().startswith("null"))
    assert "selected" in row and "tenon-platforms" in row


def test_a_platform_that_is_not_installed(tenon: Callable[..., Any]) -> None:
    ran = tenon("doctor", "--platform", "gaudi")
    assert ran.code == 3
    assert "NOT HEALTHY" in ran.out and "pip install tenon-core[gaudi]" in ran.out
    assert tenon("doctor", "--platform", "gaudi", "--json").json()["platform"] is None


def selection_of(entry: str) -> Selection:
    selection = select(SelectionRequest(platform="null", environ={}))
    return dataclasses.replace(selection, manifest=dataclasses.replace(selection.manifest, entry=entry))


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Selection]:
    """A module with this source as the selected platform's entry, in this process and in children."""

    def make(source: str) -> Selection:
        (tmp_path / "sick_plugin.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return selection_of("sick_plugin:P")

    return make


def test_a_plugin_that_does_not_import(plugin: Callable[[str], Selection]) -> None:
    found = check_platform(plugin("print('noise')\nimport no_such_library\n"), {}, 120)
    assert found["state"] == "broken" and "no_such_library" in found["reason"]
    assert "no_such_library" in found["problem"]["message"] and found["problem"]["remedy"]
    assert "ModuleNotFoundError" in found["problem"]["traceback"]


def test_a_plugin_that_kills_its_process(plugin: Callable[[str], Selection]) -> None:
    found = check_platform(plugin("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"), {}, 120)
    assert found["state"] == "broken" and "SIGSEGV" in found["problem"]["message"]


def test_a_plugin_that_hangs(plugin: Callable[[str], Selection]) -> None:
    found = check_platform(plugin("import time\ntime.sleep(600)\n"), {}, 2)
    assert "did not answer within 2 s" in found["problem"]["message"]
    assert "--timeout 8" in found["problem"]["remedy"] and "--platform" in found["problem"]["remedy"]


def test_a_device_that_does_not_open(plugin: Callable[[str], Selection]) -> None:
    source = (
        "from tenon_platforms.platform import Platform\n"
        "class P(Platform):\n"
        "    name, contract = 'null', '>=0.1,<0.2'\n"
        "    def device(self, index=0):\n"
        "        raise OSError('driver 12 is too old')\n"
    )
    found = check_platform(plugin(source), {}, 120)
    assert "OSError: driver 12 is too old" in found["problem"]["message"] and "traceback" in found["problem"]


def test_the_child_describes_a_platform() -> None:
    found = check(select(SelectionRequest(platform="reference", environ={})), {})
    assert found["problem"] is None
    platform = found["platform"]
    assert platform["capabilities"]["dtypes"][0] == "float32"
    assert platform["ops_offered"] == [] and "attention" in platform["ops_reference"]
    assert json.loads(json.dumps(platform)) == platform


def test_the_last_conformance_result_is_shown(
    tenon: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenon_platforms.conformance_record import ConformanceRecord, driver_text, write_record

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = tenon("doctor", "--platform", "reference", "--json").json()
    assert before["conformance"]["result"] is None and "never run here" in before["conformance"]["line"]
    plugin = next(item["version"] for item in before["plugins"] if item["name"] == "reference")
    versions = {"core": before["versions"]["tenon-core"], "plugin": plugin, "driver": driver_text("")}
    kept = ConformanceRecord(**versions, highest="L6", profile="full", when="2026-11-29T20:00:00+00:00")
    write_record("reference", kept)
    after = tenon("doctor", "--platform", "reference", "--json").json()
    assert after["conformance"]["result"]["highest"] == "L6"
    assert "conforms up to L6 (full profile" in tenon("doctor", "--platform", "reference").out
