"""The table of attack cases in docs/security.md names tests that exist, and leaves no case of this surface out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[3]
OWED = {
    *range(1, 6), *range(17, 20), *range(21, 26), *range(27, 37), 40, 41, *range(43, 46),
}  # fmt: skip
ROW = re.compile(r"^\| (T\d\d(?:, T\d\d)*) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)


def test_every_case_has_tests_that_exist() -> None:
    rows = ROW.findall((ROOT / "docs" / "security.md").read_text())
    cases = {int(number) for names, _ in rows for number in re.findall(r"T(\d\d)", names)}
    assert cases >= OWED, OWED - cases
    for names, told in rows:
        tests = re.findall(r"`([^`]+)`", told)
        assert tests, names
        for one in tests:
            path, _, name = one.partition("::")
            file = ROOT / path.lstrip("/") if path.startswith("/") else ROOT / "core" / "tests" / "serving" / path
            assert file.is_file(), one
            assert not name or re.search(rf"^def {name}\(", file.read_text(), re.MULTILINE), one
