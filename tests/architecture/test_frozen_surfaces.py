"""Architecture, section 8.7: frozen surfaces. What others build on is committed as text and compared with the code.

The contract's surface has a gate beside: once a version is released, it changes only with the version.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from architecture.sources import ROOT

pytestmark = pytest.mark.unit
NAMES = ("hooks", "cli_flags", "environment", "entry_points", "http_routes", "metrics", "contract")


@pytest.fixture(scope="module")
def scripts() -> Any:
    """scripts/write_surfaces.py, imported as it imports its neighbours."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import write_surfaces

        yield write_surfaces
    finally:
        sys.path.remove(str(ROOT / "scripts"))


def test_every_surface_is_compared(scripts: Any) -> None:
    assert tuple(scripts.SURFACES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_surface_is_the_committed_one(scripts: Any, name: str) -> None:
    now = scripts.SURFACES[name]()
    assert now, f"the surface {name} is empty"
    changed = scripts.difference(name, now)
    assert not changed, "\n".join(["run `make surfaces` if this change is meant", *changed])


def test_the_contract_passes_its_gate(scripts: Any) -> None:
    assert scripts.refusal(scripts.contract()) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_surface_is_found(scripts: Any, name: str) -> None:
    stored = scripts.stored(name)
    assert scripts.difference(name, stored[1:])
    assert scripts.difference(name, [*stored, "something new"])


MODULE = "class Spec:\n    size: int\n    def run(self, x: int) -> int: ...\ndef make() -> Spec: ...\n"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("size: int", "size: int = 3"),
        lambda text: text.replace("size: int", "size: float"),
        lambda text: text.replace("x: int", "x: int, y: int = 0"),
        lambda text: text.replace("make", "build"),
        lambda text: text + "LIMIT = 3\n",
        lambda text: text.replace("class Spec:", "class Spec(Base):"),
    ],
)
def test_a_changed_contract_is_seen(scripts: Any, tmp_path: Path, change: Callable[[str], str]) -> None:
    from contract_surface import surface

    (tmp_path / "spec.py").write_text(MODULE)
    before = surface(tmp_path)
    (tmp_path / "spec.py").write_text(change(MODULE))
    assert surface(tmp_path) != before
    (tmp_path / "spec.py").write_text(MODULE.replace("x: int) -> int: ...", "x: int) -> int:\n        return x\n"))
    assert surface(tmp_path) == before, "a body is no surface"


@pytest.mark.parametrize(
    ("old", "new", "versions", "released", "word"),
    [
        (["a"], ["a"], ("0.1", "0.1"), ["0.1"], None),
        (["a"], ["b"], ("0.1", "0.1"), [], None),  # not released yet
        (["a"], ["a", "b"], ("0.1", "0.1"), ["0.1"], "raise it"),
        (["a"], ["b"], ("0.1", "0.2"), ["0.1"], None),  # 0.x changes freely, with its version
        (["a"], ["a", "b"], ("1.0", "1.1"), ["1.0"], None),
        (["a"], ["b"], ("1.0", "1.1"), ["1.0"], "MAJOR"),
        (["a"], ["b"], ("1.0", "2.0"), ["1.0"], None),
        (["a"], ["b"], ("1.2", "1.1"), ["1.2"], "raise it"),
    ],
)
def test_the_gate(
    scripts: Any, old: list[str], new: list[str], versions: tuple[str, str], released: list[str], word: str | None
) -> None:
    from contract_surface import gate

    answer = gate(old, new, *versions, released)
    assert (answer is None) if word is None else (answer is not None and word in answer)
