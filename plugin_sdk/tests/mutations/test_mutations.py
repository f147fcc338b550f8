"""Every planted bug is found by the check that should, and the correct platform is not accused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from mutations import (
    attention_bugs,
    collective_bugs,
    engine_bugs,
    execution_bugs,
    kv_type_bugs,
    memory_bugs,
    op_bugs,
    sampling_bugs,
)
from mutations.installed import subject_of
from mutations.planting import Mutation, Registry

from tenon_platforms.builtin.reference.platform import ReferencePlatform
from tenon_plugin_sdk.conformance.profile import QUICK
from tenon_plugin_sdk.conformance.registry import Case, Check, NotApplicableError, all_cases
from tenon_plugin_sdk.conformance.subject import Subject
from tenon_sim.platform import SimPlatform

pytestmark = pytest.mark.unit
REGISTRY = Registry()
for module in (
    attention_bugs,
    kv_type_bugs,
    op_bugs,
    sampling_bugs,
    execution_bugs,
    memory_bugs,
    collective_bugs,
    engine_bugs,
):
    module.register(REGISTRY)
SLOWEST = 10.0  # seconds, with slack for a busy machine below
UNCLAIMED = engine_bugs.UNCLAIMED
INSTALLED = ("L4", "L5", "L6")  # levels that start engines and processes: on the installed platform
# of those, what is run at every change; the others start processes or run for long
QUICK_INSTALLED = (
    "leaked block", "more memory than there is", "never full", "sum in half", "stale row after preemption",
)  # fmt: skip


def long_where_long(name: str, level: str) -> list[pytest.MarkDecorator]:
    """The mark of the long profile, for what is not looked at in the quick one."""
    return [pytest.mark.full] if level in INSTALLED and name not in QUICK_INSTALLED else []


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def cases_at(subject: Subject, address: str) -> list[tuple[Check, Case]]:
    """The checks at an address, of its level only."""
    level = address.partition("/")[0]
    return [(c, case) for c, case in all_cases(subject, QUICK, [level]) if c.address(case) == address]


def finding(subject: Subject, address: str) -> str | None:
    """What a check says of a platform, or None."""
    found = cases_at(subject, address)
    assert found, f"no check is called {address}"
    for check, case in found:
        try:
            check.run(subject, QUICK, case)
        except NotApplicableError:
            continue
        except Exception as error:  # noqa: BLE001 - a crash is a finding too
            return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "mutation",
    [pytest.param(one, id=one.name, marks=long_where_long(one.name, one.level)) for one in REGISTRY.held.values()],
)
def test_a_planted_bug_is_found(mutation: Mutation) -> None:
    subject = mutation.subject()
    begin = time.process_time()
    try:
        found = finding(subject, mutation.check)
    finally:
        subject.close()
    assert found is not None, f"{mutation.check} does not find: {mutation.what}"
    assert time.process_time() - begin < SLOWEST * (4 if mutation.level in INSTALLED else 1)  # the first imports much


@pytest.mark.parametrize(
    "address",
    [
        pytest.param(one.check, marks=long_where_long(one.name, one.level))
        for one in {one.check: one for one in REGISTRY.held.values()}.values()
    ],
)
def test_the_correct_platform_is_not_accused(address: str) -> None:
    characters = {execution_bugs.REPLAY: "dynamic", "L3/padding": "dynamic", execution_bugs.PREFILL: "static"}
    if address.partition("/")[0] in INSTALLED and address != UNCLAIMED:
        subject = subject_of("")
    else:
        character = characters.get(address)
        subject = Subject.of(SimPlatform({"character": character}) if character else ReferencePlatform())
    if address == UNCLAIMED:
        subject.close()
        pytest.skip("the correct platform claims it: there is nothing to refuse")
    try:
        assert finding(subject, address) is None
    finally:
        subject.close()


def test_there_are_enough_of_them() -> None:
    assert len(REGISTRY.held) >= 40


def test_the_committed_table_names_them_all() -> None:
    rows = [line for line in Path(__file__).with_name("MATRIX.md").read_text().splitlines() if line.startswith("| ")]
    named = {row.split(" | ")[0].removeprefix("| "): row for row in rows[1:]}
    assert named.keys() == REGISTRY.held.keys(), "run write_table.py"
    assert not any("NOT FOUND" in row for row in named.values())
