"""The pytest plugin: options, one test a case, exceptions as strict xfails, and the reports at the end.

Loaded by every pytest of an environment that has the SDK, so importing it imports neither torch nor a platform.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .exceptions import Excused
    from .part import Part
    from .profile import Profile
    from .registry import Case, Check
    from .report.progress import Progress
    from .report.results import Results
    from .subject import Subject

RUNS: pytest.StashKey[dict[Any, Run]] = pytest.StashKey()
PROGRESS: pytest.StashKey[Progress] = pytest.StashKey()


@dataclass(slots=True, kw_only=True)
class Run:
    """One platform's run: the subject, what is excused, what came of it. num_checks: of its levels, once collected."""

    subject: Subject
    profile: Profile
    levels: list[str]
    exceptions: tuple[Excused, ...]
    results: Results
    seeds: int = 1
    num_checks: int = 0
    today: datetime.date = field(default_factory=datetime.date.today)
    started: float = field(default_factory=time.time)

    @property
    def is_long(self) -> bool:
        """Whether someone who waits wants to know how far it is."""
        return self.profile.wide or self.seeds > 1

    def excuse(self, address: str) -> Excused | None:
        """The exception that covers a check."""
        return next((one for one in self.exceptions if one.covers(address)), None)

    def command(self, check: Check, case: Case, seed: int) -> str:
        """What runs one check again, as it was."""
        parts = ["pytest --pyargs tenon_plugin_sdk.conformance", f"--platform {self.subject.name}"]
        parts += [f"--platform-opt {key}={value}" for key, value in self.subject.texts.items()]
        parts += [f"--level {check.level},", f"--profile {self.profile.name}", f'-k "{check.address(case)}"']
        return " ".join([*parts, f"--first-seed {seed}"] if check.is_drawn else parts)

    def expired(self, address: str) -> str | None:
        """What to say where the exception that covers a check has expired."""
        found = self.excuse(address)
        return None if found is None else found.expired_text(self.today)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The kit's options."""
    group = parser.getgroup("conformance", "Tenon's conformance kit")
    group.addoption("--platform", help="platform to test, by name")
    group.addoption("--platform-opt", action="append", default=[], metavar="KEY=VALUE", help="an option of it")
    group.addoption("--level", help="L2: up to it; L2,L3: those; L2, with a comma: it alone; all (default)")
    group.addoption("--profile", choices=("quick", "full"), help="how long to look; default quick")
    group.addoption("--seeds", type=int, default=1, metavar="N", help="run checks that draw with N seeds; default 1")
    group.addoption("--first-seed", type=int, default=0, metavar="K", help="the first of the seeds; default 0")
    group.addoption(
        "--part", metavar="K/N", help="the K-th of N parts, for N processes; tenon-sdk join-reports joins them"
    )
    group.addoption("--baseline", metavar="PATH", help="an earlier --report: L7 fails where a figure got worse")
    group.addoption("--baseline-ratio", type=float, default=1.5, metavar="X", help="times worse that is still well")
    group.addoption("--exceptions", metavar="PATH", help="conformance.yaml; default: beside the platform's manifest")
    group.addoption("--report", metavar="PATH", help="write the results as JSON")
    group.addoption("--html", metavar="PATH", help="write the results as a page")


def pytest_configure(config: pytest.Config) -> None:
    """One stash of runs a session."""
    config.stash[RUNS] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a check and case."""
    if "conformance_check" not in metafunc.fixturenames or metafunc.cls is None:
        return
    from .registry import all_cases

    run = _run_of(metafunc.config, metafunc.cls, Path(metafunc.module.__file__ or "."))
    params = []
    for check, case in all_cases(run.subject, run.profile, run.levels):
        address = check.address(case)
        marks: list[pytest.MarkDecorator] = []
        excuse = run.excuse(address)
        if excuse is not None and run.expired(address) is None:
            marks.append(
                pytest.mark.xfail(strict=True, reason=f"{excuse.reason} ({excuse.link}, until {excuse.expires})")
            )
        params.append(pytest.param(run, check, case, id=address, marks=marks))
    metafunc.parametrize(("conformance_run", "conformance_check", "conformance_case"), _part_of(run, params))


def _part_of(run: Run, params: list[Any]) -> list[Any]:
    """All, or those of the part that was asked for."""
    run.num_checks = len(params)
    if run.results.part is None:
        return params
    run.results.part = replace(run.results.part, levels=tuple(run.levels), checks=len(params))
    try:
        return run.results.part.take(params)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def _run_of(config: pytest.Config, suite: Any, file: Path) -> Run:
    """The run of one suite class, made at its first collection."""
    runs = config.stash[RUNS]
    if suite not in runs:
        runs[suite] = _make_run(config, suite, file)
    return runs[suite]


def _make_run(config: pytest.Config, suite: Any, file: Path) -> Run:
    from tenon_platforms.errors import TenonError

    from .exceptions import read_exceptions
    from .meters.figures import read_baseline
    from .profile import PROFILES
    from .registry import levels_up_to
    from .report.results import Results
    from .subject import Subject

    name = config.getoption("--platform") or suite.platform
    if not name:
        raise pytest.UsageError("name the platform to test: --platform NAME, or `platform` in the suite's class")
    try:
        part = _part(config)
        options = {**suite.options, **_options(name, config.getoption("--platform-opt"))}
        subject = Subject.installed(name, options)
        exceptions = read_exceptions(_exceptions_path(config, suite, file, subject))
        subject.exceptions = exceptions
        if (path := config.getoption("--baseline")) is not None:
            subject.baseline = read_baseline(Path(path), config.getoption("--baseline-ratio"))
        levels = levels_up_to(config.getoption("--level") or suite.level)
    except (TenonError, ValueError) as error:
        raise pytest.UsageError(str(error)) from error
    profile = PROFILES[config.getoption("--profile") or suite.profile]
    first_seed, seeds = config.getoption("--first-seed"), max(config.getoption("--seeds"), 1)
    profile = replace(profile, seed=profile.seed + first_seed)
    results = Results(platform=name, profile=profile.name, options=dict(subject.options), part=part)
    results.seeds, results.first_seed = seeds, first_seed
    return Run(subject=subject, profile=profile, levels=levels, exceptions=exceptions, results=results, seeds=seeds)


def _part(config: pytest.Config) -> Part | None:
    """Which part was asked for."""
    from .part import Part

    if (text := config.getoption("--part")) is None:
        return None
    if config.getoption("--baseline") is not None:
        raise ValueError("--part with --baseline: a part has not all figures; compare a run of `--level L7,` alone")
    return Part.parse(text)


def _options(name: str, given: list[str]) -> dict[str, str]:
    """KEY=VALUE, or NAME.KEY=VALUE as the engine's flag takes it."""
    options = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not separator:
            raise ValueError(f"--platform-opt {text}: expected KEY=VALUE")
        options[key.removeprefix(f"{name}.")] = value
    return options


def _exceptions_path(config: pytest.Config, suite: Any, file: Path, subject: Subject) -> Path | None:
    given = config.getoption("--exceptions")
    if given:
        return Path(given)
    if suite.exceptions:
        return Path(file.parent / suite.exceptions)
    return None if subject.manifest is None else Path(subject.manifest.path).parent / "conformance.yaml"


def pytest_collection_finish(session: pytest.Session) -> None:
    """A long run tells where it is."""
    values = [_values(item) for item in session.items]
    if any("conformance_run" in each and each["conformance_run"].is_long for each in values):
        from .report.progress import Progress

        checks = [each["conformance_check"] for each in values if "conformance_run" in each]
        session.config.stash[PROGRESS] = Progress.of(checks)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """The line of a check that begins; not at its setup, where output is captured."""
    terminal, values = item.config.pluginmanager.get_plugin("terminalreporter"), _values(item)
    progress = item.config.stash.get(PROGRESS, None)
    if progress is None or terminal is None or "conformance_run" not in values:
        return
    check = values["conformance_check"]
    line = progress.begin(check, check.address(values["conformance_case"]), time.monotonic())
    if line is not None:
        terminal.ensure_newline()
        terminal.write_line(line if terminal.verbosity >= 0 else f"\n{line}")  # quiet dots know no line's end


def _values(item: pytest.Item) -> dict[str, Any]:
    """What a test was parametrized with."""
    found: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Keep what came of each check."""
    report: Any = yield
    values = _values(item)
    run: Run | None = values.get("conformance_run")
    if run is not None and (report.when == "call" or report.outcome != "passed"):
        run.results.add(values["conformance_check"], values["conformance_case"], report, run.excuse)
    return report  # type: ignore[no-any-return]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table, and the files that were asked for."""
    from .report.results import keep
    from .report.terminal import table_lines

    for run in config.stash[RUNS].values():
        if not run.results.entries:
            if run.subject.error is not None:
                terminalreporter.section(f"conformance of {run.results.platform}")
                terminalreporter.write_line(f"the platform does not open:\n{run.subject.error}")
            continue
        run.results.whole = _is_whole(run)
        run.results.finish(run.subject, seconds=time.time() - run.started)
        terminalreporter.section(f"conformance of {run.results.platform}, {run.results.profile} profile")
        for line in table_lines(run.results, run.levels):
            terminalreporter.write_line(line)
        _write_reports(config, run, terminalreporter)
        keep(run.results, run.subject.manifest)


def _is_whole(run: Run) -> bool:
    """Whether every check ran. A part, what a name selects and what was stopped early say nothing of a level."""
    return run.results.part is None and run.results.num_checks() == run.num_checks


def _write_reports(config: pytest.Config, run: Run, terminalreporter: pytest.TerminalReporter) -> None:
    from .report.html import page
    from .report.results import to_json, write_report

    for option, text in (("--report", to_json), ("--html", page)):
        path = config.getoption(option)
        if path:
            write_report(Path(path), text(run.results))
            terminalreporter.write_line(f"written: {path}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Give devices back."""
    for run in config.stash.get(RUNS, {}).values():
        run.subject.close()
