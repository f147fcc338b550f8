"""Level 0, packaging: what can be said of a plugin before any of its code runs, and what importing it does."""

from __future__ import annotations

import json
import re
from typing import Any

from ..exceptions import unmatched
from ..profile import QUICK, Profile
from ..registry import LEVELS, Case, Check, ConformanceError, NotApplicableError, all_cases
from ..subject import Subject
from .clean_process import run_clean

IMPORT_SECONDS = 1.0  # of the plugin's own modules, once torch is there; processor time
DISCOVERY = """
import json, sys
from tenon_platforms.manifest import read_manifests
from tenon_platforms.selection import SelectionRequest, select
name, package = sys.argv[1:3]
assert any(one.name == name for one in read_manifests().valid)
select(SelectionRequest(platform=name))
print(json.dumps(sorted(m for m in sys.modules if m == "torch" or m == package or m.startswith(package + "."))))
"""
FRESH = """
import builtins, json, logging, os, signal, sys, threading, time
from importlib import import_module
import numpy, torch, torch.distributed, torch.nn.functional
import tenon_platforms.attention, tenon_platforms.device, tenon_platforms.kernel, tenon_platforms.ops.table
import tenon_platforms.platform
module, _, attribute = sys.argv[1].partition(":")
watched = [torch, torch.nn.functional, torch.Tensor, torch.distributed, numpy, builtins, os, signal, logging]
watched += [m for n, m in sorted(sys.modules.items()) if n.startswith("tenon_platforms")]
def seen():
    items = ((getattr(o, "__name__", str(o)), n, v) for o in watched for n, v in vars(o).items())
    return {(owner, name): id(value) for owner, name, value in items if not name.startswith("__")}
def count():
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else threading.active_count()
before, environ = seen(), dict(os.environ)
begin = time.process_time()
make = getattr(import_module(module), attribute)
seconds = time.process_time() - begin
platform = make(json.loads(sys.argv[2]))
threads = count()
devices = platform.probe()
started = count() - threads
after = seen()
patched = [".".join(k) for k, v in before.items() if after.get(k) != v]
changed = sorted(k for k in {**environ, **os.environ} if environ.get(k) != os.environ.get(k))
status = None
if hasattr(os, "fork"):
    child = os.fork()
    if child == 0:
        device = platform.device(0)
        device.open()
        device.zeros((4,), torch.float32)
        device.synchronize()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
print(json.dumps({
    "seconds": seconds, "patched": patched, "environ": changed, "threads": started, "status": status,
    "devices": [[d.id, d.name] for d in devices],
}))
"""


def opens(subject: Subject, profile: Profile, case: Case) -> None:
    """The platform is imported, made and its device opened."""
    if subject.error is not None:
        raise ConformanceError(f"the platform does not open:\n{subject.error}")


def manifest(subject: Subject, profile: Profile, case: Case) -> None:
    """The manifest's range covers this contract, and the code says what the manifest says."""
    found = _manifest(subject)
    if not found.accepts_contract():
        raise ConformanceError(f"the manifest's contract range {found.contract} does not cover this contract")
    platform = type(subject.platform)
    if platform.name != found.name or platform.contract != found.contract:
        raise ConformanceError(
            f"the code says {platform.name!r} {platform.contract!r}, the manifest {found.name!r} {found.contract!r}"
        )


def discovery(subject: Subject, profile: Profile, case: Case) -> None:
    """Reading manifests and selecting the platform imports neither torch nor the plugin."""
    found = _manifest(subject)
    package = found.entry.partition(":")[0].partition(".")[0]
    if package == "tenon_platforms":
        package = found.entry.partition(":")[0]
    imported = run_clean(DISCOVERY, found.name, package)
    if imported:
        raise ConformanceError(f"discovery imported {', '.join(imported)}: it must import nothing")


def import_time(subject: Subject, profile: Profile, case: Case) -> None:
    """Importing the entry takes under a second once torch is there."""
    seconds = _fresh(subject)["seconds"]
    if seconds > IMPORT_SECONDS:
        raise ConformanceError(
            f"importing {_manifest(subject).entry} takes {seconds:.2f} s, more than {IMPORT_SECONDS} s"
        )


def patches(subject: Subject, profile: Profile, case: Case) -> None:
    """Importing, making and probing changes no attribute of torch, numpy, the contract or Python, and no variable."""
    found = _fresh(subject)
    if found["patched"]:
        raise ConformanceError(
            f"the plugin replaces {', '.join(found['patched'][:10])}: what others use stays as it is"
        )
    declared = {*subject.device.process_model.forward_env, subject.device.process_model.visibility}
    if undeclared := [name for name in found["environ"] if name not in declared]:
        raise ConformanceError(f"it changes {', '.join(undeclared)}, which its ProcessModel does not declare")


def probe(subject: Subject, profile: Profile, case: Case) -> None:
    """A probe creates no context: it starts no thread, and a process forked after it can open the device."""
    found = _fresh(subject)
    if found["status"] is None:
        raise NotApplicableError("this system has no fork")
    if not found["devices"]:
        raise ConformanceError("the probe finds no device, although this machine opened one")
    if len({number for number, _ in found["devices"]}) != len(found["devices"]):
        raise ConformanceError(f"the probe gives ids twice: {found['devices']}")
    if found["threads"]:
        raise ConformanceError(f"the probe started {found['threads']} threads: a fork after it would lose them")
    if found["status"]:
        raise ConformanceError(f"a process forked after the probe cannot open the device (status {found['status']})")


def requirements(subject: Subject, profile: Profile, case: Case) -> None:
    """The distribution depends on the contract by range, on no core, and pins no torch."""
    from importlib_metadata import PackageNotFoundError, requires

    try:
        required = requires(_manifest(subject).distribution) or []
    except PackageNotFoundError as error:
        raise NotApplicableError(f"{_manifest(subject).distribution} is not installed as a distribution") from error
    for line in required:
        name = re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower().replace("_", "-")
        if name == "tenon-core" and "extra ==" not in line:
            raise ConformanceError(f"it requires {line!r}: a plugin depends on tenon-platforms only")
        if name == "torch" and re.search(r"==|~=", line.partition(";")[0]):
            raise ConformanceError(f"it requires {line!r}: torch is a range, never a pin")


def exceptions(subject: Subject, profile: Profile, case: Case) -> None:
    """Every exception of conformance.yaml speaks of a check that there is."""
    if not subject.exceptions:
        raise NotApplicableError("there is no conformance.yaml, or nothing in it")
    known = {check.address(one) for check, one in all_cases(subject, profile, LEVELS)}
    if profile.name != QUICK.name:
        known |= {check.address(one) for check, one in all_cases(subject, QUICK, LEVELS)}
    if stale := unmatched(subject.exceptions, known):
        raise ConformanceError(f"exceptions that match no check: {', '.join(stale)}; remove them")


def _manifest(subject: Subject) -> Any:
    if subject.manifest is None:
        raise NotApplicableError("the platform was made by hand and has no manifest")
    return subject.manifest


def _fresh(subject: Subject) -> dict[str, Any]:
    """What importing, making and probing it did to a fresh process, and whether a fork of that opens the device.

    One process for the three checks that ask: most of its time is torch's import.
    """
    if "fresh" not in subject.shared:
        subject.shared["fresh"] = run_clean(FRESH, _manifest(subject).entry, json.dumps(subject.options))
    found: dict[str, Any] = subject.shared["fresh"]
    return found


CHECKS = (
    Check(level="L0", name="opens", what="the platform can be made", run=opens, needs_platform=False),
    Check(level="L0", name="manifest", what="manifest and code agree", run=manifest),
    Check(level="L0", name="discovery", what="discovery imports nothing", run=discovery),
    Check(level="L0", name="import_time", what="importing takes under a second", run=import_time),
    Check(level="L0", name="patches", what="no global is replaced, no variable changed", run=patches),
    Check(level="L0", name="probe", what="a probe creates no context", run=probe),
    Check(level="L0", name="requirements", what="no core, no torch pin", run=requirements),
    Check(level="L0", name="exceptions", what="exceptions speak of checks that exist", run=exceptions),
)
