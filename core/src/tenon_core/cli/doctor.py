"""`tenon doctor`: is this machine fit to serve? Hardware, plugins and versions here; the platform itself in a child.

The parent imports neither torch nor a plugin, so a plugin that crashes or hangs on import is a line in the report. The
exit code tells: 0 healthy, 3 not.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from tenon_platforms.conformance_record import driver_text, last_record
from tenon_platforms.selection import Selection
from tenon_platforms.version import contract_version_text

from .output import print_json
from .platform_check import check_platform, look
from .versions import versions

UNHEALTHY = 3


@click.command()
@click.option("--platform", default=None, help="Check this platform instead of the one that would be selected.")
@click.option("--platform-opt", multiple=True, help="An option of a platform, NAME.KEY=VALUE; may be repeated.")
@click.option(
    "--timeout", type=click.FloatRange(1, 3600), default=120.0, show_default=True, help="Seconds the platform may take."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def doctor(
    context: click.Context, platform: str | None, platform_opt: tuple[str, ...], timeout: float, as_json: bool
) -> int:
    """Check this machine: hardware, plugins and their states, versions, and the platform that would run."""
    report = diagnose(platform, platform_opt, timeout)
    if as_json:
        print_json(report)
    else:
        _print(report)
    return 0 if report["healthy"] else UNHEALTHY


def diagnose(platform: str | None, platform_opt: tuple[str, ...], timeout: float) -> dict[str, Any]:
    """The whole report as plain data."""
    seen = look(platform, platform_opt)
    report: dict[str, Any] = {
        "healthy": False,
        "contract": contract_version_text(),
        "versions": versions(),
        "hardware": seen.hardware,
        "plugins": seen.plugins,
        "selected": None if seen.selection is None else seen.selection.platform,
        "warnings": seen.warnings,
        "notes": seen.notes,
        "problem": seen.problem,
        "platform": None,
        "conformance": None,
    }
    if seen.selection is not None and seen.problem is None:
        checked = check_platform(seen.selection, seen.options, timeout)
        report["problem"], report["platform"] = checked["problem"], checked["platform"]
        report["conformance"] = _conformance(seen.selection, report)
        for plugin in report["plugins"]:
            if checked["state"] is not None and plugin["name"] == report["selected"]:
                plugin["state"], plugin["reason"] = checked["state"], checked["reason"]
    report["healthy"] = report["problem"] is None
    return report


def _conformance(selection: Selection, report: dict[str, Any]) -> dict[str, Any] | None:
    """The last result of the conformance kit for this very core, plugin and driver."""
    if report["platform"] is None:
        return None
    devices = report["platform"]["devices"]
    driver = devices[0].get("driver", "") if devices else ""
    core, plugin = report["versions"].get("tenon-core", ""), selection.manifest.version
    record, line = last_record(selection.platform, core, plugin, driver_text(driver))
    return {"line": line, "result": None if record is None else asdict(record)}


def _print(report: dict[str, Any]) -> None:
    click.echo(f"contract {report['contract']}")
    _heading("versions", [f"{name} {number}" for name, number in report["versions"].items()])
    _heading("hardware", [item["line"] for item in report["hardware"]] or ["no accelerator was seen"])
    _heading("platforms", [_plugin_line(item) for item in report["plugins"]])
    for warning in report["warnings"]:
        click.echo(f"\nwarning: {warning}")
    _heading("notes", report["notes"])
    if report["platform"] is not None:
        _print_platform(report["selected"], report["platform"])
    if report["conformance"] is not None:
        _heading("conformance", [report["conformance"]["line"]])
    if report["problem"] is not None:
        click.echo(f"\nNOT HEALTHY: {report['problem']['message']}")
        if report["problem"]["remedy"]:
            click.echo(f"remedy: {report['problem']['remedy']}")
        if report["problem"].get("traceback"):
            click.echo(f"\n{report['problem']['traceback'].rstrip()}")
    else:
        click.echo(f"\nhealthy: platform {report['selected']!r} is ready to serve")


def _plugin_line(item: dict[str, Any]) -> str:
    contract = f", contract {item['contract']}" if item["contract"] else ""
    return f"{item['name']} ({item['distribution']} {item['version']}{contract}): {item['state']}: {item['reason']}"


def _print_platform(name: str, platform: dict[str, Any]) -> None:
    lines = [f"imported and opened in {platform['seconds']:.1f} s"]
    lines += [f"device {device['id']}: {device['line']}" for device in platform["devices"]]
    lines += [f"{key.replace('_', ' ')}: {_words(value)}" for key, value in platform["capabilities"].items()]
    lines.append(f"memory: {platform['memory']}")
    lines.append(f"offers kernels for: {_words(platform['ops_offered'])}")
    lines.append(f"only on the reference: {_words(platform['ops_reference'])}")
    _heading(f"platform {name}", lines)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        value = [f"{key} {how}" for key, how in value.items()]
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "no limit" if value is None else str(value)


def _heading(title: str, lines: list[str]) -> None:
    if lines:
        click.echo(f"\n{title}")
        for line in lines:
            click.echo(f"  {line}")
