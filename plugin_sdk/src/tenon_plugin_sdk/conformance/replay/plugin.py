"""The pytest plugin of replays: `--replay FILE`, one test a recorded case. Importing it imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ..subject import Subject
    from .case_file import CaseFile

OWN_FILE = Path(__file__).with_name("test_replay.py")
REPLAYS: pytest.StashKey[list[Replay]] = pytest.StashKey()


@dataclass(slots=True, kw_only=True)
class Replay:
    """One file on one platform."""

    subject: Subject
    file: CaseFile


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the cases are; the platform is named by the kit's own options."""
    group = parser.getgroup("conformance", "Tenon's conformance kit")
    group.addoption("--replay", metavar="FILE", help="op cases that `tenon ops record` wrote, run on the platform")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without a file there is nothing to replay."""
    return True if collection_path == OWN_FILE and not config.getoption("--replay") else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a case."""
    if "replayed" not in metafunc.fixturenames:
        return
    replay = _open(metafunc.config)
    metafunc.parametrize(
        ("replayed", "number"),
        [pytest.param(replay, number, id=name) for number, name in enumerate(replay.file.ids())],
    )


def _open(config: pytest.Config) -> Replay:
    from tenon_platforms.errors import TenonError

    from ..plugin import _options as platform_options
    from ..subject import Subject
    from .case_file import CaseFile

    name, path = config.getoption("--platform"), config.getoption("--replay")
    if not name or not path:
        raise pytest.UsageError("name the platform and the recorded cases: --platform NAME --replay FILE")
    try:
        file = CaseFile(path=Path(path))
        subject = Subject.installed(name, platform_options(name, config.getoption("--platform-opt")))
    except (TenonError, ValueError) as error:
        raise pytest.UsageError(str(error)) from error
    if subject.error is not None:
        raise pytest.UsageError(f"platform {name!r} does not open:\n{subject.error}")
    config.stash.setdefault(REPLAYS, []).append(Replay(subject=subject, file=file))
    return config.stash[REPLAYS][-1]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Give devices back."""
    for one in config.stash.get(REPLAYS, []):
        one.subject.close()
