"""What `tenon doctor` finds out: the survey in this process, the platform itself in a child with a time-out.

Torch-free. The child is `python -m tenon_core.cli.doctor_child`: it gets the selection as JSON on standard input and
answers with JSON on standard output.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from dataclasses import asdict, dataclass, field
from typing import Any

from tenon_core.children import module_command
from tenon_platforms.errors import TenonError
from tenon_platforms.mending import mending
from tenon_platforms.options import parse_platform_options
from tenon_platforms.plugin_report import PluginReport, reports
from tenon_platforms.selection import Selection, SelectionError, SelectionRequest, select, survey

LAST_LINES = 12  # of a dead child's standard error


@dataclass(slots=True, kw_only=True)
class Look:
    """What the parent sees. problem: {message, remedy} where no platform could be selected."""

    hardware: list[dict[str, Any]] = field(default_factory=list)
    plugins: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    selection: Selection | None = None
    options: dict[str, Any] = field(default_factory=dict)
    problem: dict[str, Any] | None = None


def look(platform: str | None, platform_opt: tuple[str, ...] = ()) -> Look:
    """Read manifests, look for hardware, select; never raises a `TenonError`: it becomes the problem."""
    seen = Look()
    request = SelectionRequest(platform=platform)
    try:
        selection = seen.selection = select(request)
        seen.hardware = [_hardware(item) for item in selection.hardware]
        seen.plugins = [_plugin(item) for item in selection.plugins]
        seen.warnings, seen.notes = list(selection.warnings), list(selection.notes)
        seen.options, notes = parse_platform_options(platform_opt, selection.manifest)
        seen.notes += notes
    except TenonError as error:
        seen.problem = problem_of(error)
        if seen.selection is None:
            _fill_without_selection(seen, error, request)
    return seen


def _fill_without_selection(seen: Look, error: TenonError, request: SelectionRequest) -> None:
    if isinstance(error, SelectionError):
        hardware, plugins = error.hardware, error.plugins
    else:
        try:
            found = survey(request)
        except TenonError:  # the manifests themselves contradict each other: the problem says how
            return
        hardware, plugins = found.hardware, reports(found)
    seen.hardware = [_hardware(item) for item in hardware]
    seen.plugins = [_plugin(item) for item in plugins]


def _hardware(item: Any) -> dict[str, Any]:
    return {**asdict(item), "presence": str(item.presence), "line": item.line()}


def _plugin(item: PluginReport) -> dict[str, Any]:
    return {**asdict(item), "state": str(item.state)}


def problem_of(error: TenonError) -> dict[str, Any]:
    """An error as data; the traceback's text where a plugin brought one."""
    text = getattr(error, "traceback_text", "")
    return {
        "kind": type(error).__name__,
        "message": error.message,
        "remedy": error.remedy,
        **({"traceback": text} if text else {}),
    }


def check_platform(selection: Selection, options: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Load the platform in a child: {problem, platform, state, reason}. A hung or dying child is a problem."""
    order = json.dumps({"selection": selection.to_dict(), "options": options})
    child = subprocess.Popen(
        module_command("tenon_core.cli.doctor_child"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        answer, told = child.communicate(order, timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill(child)
        return _failed(
            selection,
            f"platform {selection.platform!r} ({selection.manifest.owner}) did not answer within {timeout:g} s",
            f"look at its driver and runtime, or give it longer: tenon doctor --timeout {timeout * 4:g}",
        )
    except BaseException:
        _kill(child)
        raise
    if child.returncode == 0:
        try:
            result: dict[str, Any] = json.loads(answer)
            return result
        except ValueError:
            told += answer
    how = f"signal {signal.Signals(-child.returncode).name}" if child.returncode < 0 else f"exit {child.returncode}"
    lines = "\n".join(told.strip().splitlines()[-LAST_LINES:])
    return _failed(
        selection,
        f"platform {selection.platform!r} ({selection.manifest.owner}) ended its process while it was loaded ({how})",
        f"{mending(selection.manifest.distribution, selection.manifest.path)}, and check the driver",
        traceback=lines,
    )


def _failed(selection: Selection, message: str, remedy: str, traceback: str = "") -> dict[str, Any]:
    if selection.escape and selection.escape != selection.platform:
        remedy += f"; or run on the host's processor: --platform {selection.escape}"
    problem = {"kind": "PluginError", "message": message, "remedy": remedy}
    if traceback:
        problem["traceback"] = traceback
    return {"problem": problem, "platform": None, "state": "broken", "reason": message}


def _kill(child: subprocess.Popen[str]) -> None:
    """The child and what it started: it leads a session of its own."""
    with contextlib.suppress(ProcessLookupError):  # it may just have ended
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
