"""Reports of the parts of a run (`--part K/N`), and of runs of other levels, joined into one.

Only reports that say the same of platform, options, profile, seeds, versions, driver and device join, and no check may
be in two of them. The number of processors and the bytes of memory may differ: two hosts of a kind differ in them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tenon_platforms.errors import ConfigError
from tenon_platforms.manifest import read_manifests

from ..part import Part
from ..registry import LEVELS
from .results import FORMAT, Entry, Results, keep

Report = tuple[Path, Results]
MACHINE = ("system", "machine", "driver")
DEVICE = ("name", "arch")


def join(paths: Sequence[Path]) -> Results:
    """One run made of the reports in these files. Raises `ConfigError` that names the file and what is wrong.

    A figure that several took (peaks, which each part with a kernel of L7 measures) is the first report's, and so is
    the machine. An offer is silent where no report has it served.
    """
    reports = [(path, read_report(path)) for path in paths]
    _refuse_others(reports)
    _refuse_twice(reports)
    runs = [run for _, run in reports]
    served, missing = {name for run in runs for name in run.served}, tuple(_missing(reports))
    silent = _firsts(run.silent for run in runs)
    return Results(
        platform=runs[0].platform,
        profile=runs[0].profile,
        options=runs[0].options,
        entries=_in_order(runs),
        measured=_firsts(run.measured for run in runs),
        machine=runs[0].machine,
        seconds=_seconds(runs),
        seeds=runs[0].seeds,
        first_seed=runs[0].first_seed,
        whole=not missing,
        missing=missing,
        served=tuple(sorted(served)),
        silent={name: silent[name] for name in sorted(set(silent) - served)},
    )


def remember(results: Results) -> str | None:
    """Keep a joined run for `tenon doctor` where that plugin is what is installed here; where it was written."""
    from importlib_metadata import version

    manifest = next((one for one in read_manifests().valid if one.name == results.platform), None)
    if manifest is None:
        return None
    same = results.machine["versions"].get(manifest.distribution) == version(manifest.distribution)
    return keep(results, manifest) if same else None


def read_report(path: Path) -> Results:
    """A report that `--report` wrote. Raises `ConfigError`."""
    try:
        return _results(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: no report of the conformance kit: {error!r}") from error


def _results(data: dict[str, Any]) -> Results:
    entries = [Entry(**one) for one in data["checks"]]
    if data["format"] != FORMAT:
        raise ValueError(f"its format is {data['format']}, expected {FORMAT}")
    _check_kinds(data)
    if unknown := {entry.level for entry in entries} - set(LEVELS):
        raise ValueError(f"{', '.join(sorted(unknown))} is no level")
    part = data.get("part")
    return Results(
        platform=data["platform"],
        profile=data["profile"],
        options=data["options"],
        entries=entries,
        measured=data["measured"],
        machine=data["machine"],
        seconds=data["seconds"],
        seeds=data["seeds"],
        first_seed=data.get("first_seed", 0),
        whole=data.get("whole", False),
        part=None if part is None else Part(**{**part, "levels": tuple(part["levels"])}),
        served=tuple(data["kernels"]["served"]),
        silent=data["kernels"]["silent"],
    )


def _check_kinds(data: dict[str, Any]) -> None:
    """Raises `ValueError` where a field is of another kind than `--report` writes."""
    machine = data["machine"]
    kinds: dict[str, tuple[Any, type]] = {
        "options": (data["options"], dict),
        "measured": (data["measured"], dict),
        "machine": (machine, dict),
        "machine.versions": (machine["versions"], dict),
        "machine.device": (machine.get("device", {}), dict),
        "kernels.silent": (data["kernels"]["silent"], dict),
        "kernels.served": (data["kernels"]["served"], list),
        "seeds": (data["seeds"], int),
        "platform": (data["platform"], str),
        "profile": (data["profile"], str),
    }
    part = data.get("part")
    for name in ("number", "of", "checks"):
        if part is not None:
            kinds[f"part.{name}"] = (part[name], int)
    for name, (value, kind) in kinds.items():
        if not isinstance(value, kind):
            raise ValueError(f"{name} is {value!r}, expected {kind.__name__}")


def _refuse_others(reports: Sequence[Report]) -> None:
    """All speak of the same platform, on the same kind of machine, asked in the same way."""
    first_path, first = reports[0]
    expected = _facts(first)
    for path, run in reports[1:]:
        found = _facts(run)
        for name in [*expected, *found]:
            ours, theirs = found.get(name), expected.get(name)
            if ours != theirs:
                raise ConfigError(f"{path}: {name} is {ours!r}, in {first_path} it is {theirs!r}: these do not join")


def _facts(run: Results) -> dict[str, Any]:
    """What reports of one run agree in, by the field's name in the file."""
    device, versions = run.machine.get("device", {}), run.machine["versions"]
    return {
        "platform": run.platform,
        "profile": run.profile,
        "seeds": run.seeds,
        "first_seed": run.first_seed,
        **{f"options.{name}": value for name, value in run.options.items()},
        **{f"machine.versions.{name}": value for name, value in versions.items()},
        **{f"machine.{name}": run.machine.get(name) for name in MACHINE},
        **{f"machine.device.{name}": device.get(name) for name in DEVICE},
    }


def _refuse_twice(reports: Sequence[Report]) -> None:
    held: dict[tuple[str, str], Path] = {}
    for path, run in reports:
        found = {(entry.level, entry.address) for entry in run.entries}
        if twice := sorted(found & set(held)):
            _, address = twice[0]
            more = f" and {len(twice) - 1} more" if len(twice) > 1 else ""
            raise ConfigError(f"{path}: {address}{more} came already, in {held[twice[0]]}: which of them counts?")
        held |= dict.fromkeys(found, path)


def _missing(reports: Sequence[Report]) -> Iterator[str]:
    """What keeps the joined report from being whole."""
    for path, run in reports:
        if run.part is None and not run.whole:
            yield f"{path} does not say that it has all checks of its levels"
    for (of, levels, checks), runs in _groups([run for _, run in reports]).items():
        there = {run.part.number for run in runs if run.part is not None}
        lost = [f"{number}/{of}" for number in range(1, min(of, checks) + 1) if number not in there]
        seen = sum(run.num_checks() for run in runs)
        if lost:
            yield f"part {', '.join(lost)} of {','.join(levels)}"
        elif seen < checks:
            yield f"{checks - seen} checks that the {of} parts of {','.join(levels)} left out or did not reach"


def _groups(runs: Sequence[Results]) -> dict[tuple[int, tuple[str, ...], int], list[Results]]:
    """Parts that belong together: as many, of the same levels, of as many checks."""
    groups: dict[tuple[int, tuple[str, ...], int], list[Results]] = {}
    for run in runs:
        if run.part is not None:
            groups.setdefault((run.part.of, run.part.levels, run.part.checks), []).append(run)
    return groups


def _firsts(held: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """All of them in one; the first wins."""
    found: dict[str, Any] = {}
    for each in held:
        for name, value in each.items():
            found.setdefault(name, value)
    return found


def _in_order(runs: Sequence[Results]) -> list[Entry]:
    """Every entry, by level, and within one where a run of all parts has it."""
    order, placed = list(LEVELS), []
    for run in runs:
        for index, entry in enumerate(run.entries):
            place = index if run.part is None else run.part.place(index)
            placed.append((order.index(entry.level), place, entry))
    return [entry for _, _, entry in sorted(placed, key=lambda each: each[:2])]


def _seconds(runs: Sequence[Results]) -> float:
    """How long one waits: parts run beside each other, so the longest counts; other runs come one after another.

    The checks' own seconds stay as they were measured, so a level's time is the sum over all processes.
    """
    alone = sum(run.seconds for run in runs if run.part is None)
    return alone + sum(max(run.seconds for run in group) for group in _groups(runs).values())
