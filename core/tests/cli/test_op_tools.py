"""The search of `tenon ops bisect` over made-up runs, and the commands' flags. Real runs are in tests/house."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenon_core.cli.op_tools import bisecting
from tenon_core.cli.op_tools.bisecting import Bisection, Verdict
from tenon_core.cli.op_tools.runs import Ran
from tenon_core.cli.op_tools.swapping import Swap, SwappingTable
from tenon_core.config import EngineConfig
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError
from tenon_platforms.execution import ExecutableKind
from tenon_platforms.kernel import Kernel
from tenon_platforms.ops.mlp import ActivationMulSpec
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec
from tenon_platforms.ops.spec import Spec
from tenon_platforms.ops.table import Choice, OpTable

pytestmark = pytest.mark.unit
NARROW, WIDE = (RMSNormSpec(hidden=size, eps=1e-5, dtype=DType.FLOAT32) for size in (8, 16))
ADD = AddRMSNormSpec(norm=NARROW)
MUL = ActivationMulSpec(features=8, activation="silu", dtype=DType.FLOAT32)
RIGHT = [5, 6, 7, 8]


class World:
    """A platform whose tokens are wrong while `is_wrong` says so of the specs that run on its own kernels."""

    def __init__(self, is_wrong: Callable[[set[Spec], bool], bool], *, lead: float = 1.0) -> None:
        self.is_wrong = is_wrong
        self.lead = lead
        self.runs: list[Swap] = []

    def run(self, config: EngineConfig, prompts: Any, *, max_tokens: int, make_table: Any) -> Ran:
        """Stands in for `run_greedy`."""
        swap: Swap = make_table.keywords["swap"]
        platform = config.platform.platform or "thing"
        table = OpTable(platform=platform)
        if platform == "reference":
            return self._ran(platform, table, RIGHT)
        self.runs.append(swap)
        specs = (NARROW, WIDE, ADD, MUL)
        own = {spec for spec in specs if not swap.covers(spec)}
        if MUL not in own and swap.ops == {"activation_mul"}:
            raise ConfigError("there is no reference for that here")
        for spec in specs:
            source = "thing" if spec in own else "reference"
            kernel = Kernel(name=f"thing.{spec.op}", run=lambda: None)
            table._choices[(spec, ())] = Choice(spec=spec, kernel=kernel, source=source, refused=())
        wrong = self.is_wrong(own, config.platform.enforce_eager)
        return self._ran(platform, table, [5, 6, 9, 9] if wrong else RIGHT)

    def _ran(self, platform: str, table: OpTable, tokens: list[int]) -> Ran:
        return Ran(
            platform=platform,
            dtype=DType.FLOAT32,
            kv_dtype=DType.FLOAT32,
            kind=ExecutableKind.EAGER,
            table=table,
            tokens=[RIGHT, tokens],
            leads=[[1.0] * 4, [1.0, 1.0, self.lead, 1.0]],
        )


def search(world: World, monkeypatch: pytest.MonkeyPatch, **flat: Any) -> Verdict:
    """Bisect a world."""
    monkeypatch.setattr(bisecting, "run_greedy", world.run)
    config = EngineConfig.from_flat(model="m", **flat)
    return Bisection(config=config, prompts=[[1], [2]], max_tokens=4).search()


def test_the_op_and_the_spec_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = search(World(lambda own, eager: WIDE in own), monkeypatch)
    assert verdict.cause == "ops"
    (found,) = verdict.culprits
    assert (found.op, found.kernel) == ("rms_norm", "thing.rms_norm")
    assert "hidden=16" in found.spec and found.fingerprint == WIDE.fingerprint()
    assert verdict.mismatch is not None
    assert (verdict.mismatch.prompt, verdict.mismatch.place, verdict.mismatch.expected) == (1, 2, 7)
    assert verdict.tried[0] == ("rms_norm", "right")


def test_two_faults_are_found_together(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = search(World(lambda own, eager: bool({ADD, MUL} & own)), monkeypatch)
    assert {one.op for one in verdict.culprits} == {"add_rms_norm", "activation_mul"}
    assert ("activation_mul", "cannot be swapped: there is no reference for that here") in verdict.tried


def test_a_fault_of_capture_is_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = search(World(lambda own, eager: not eager), monkeypatch)
    assert (verdict.cause, verdict.culprits) == ("execution", ())


def test_a_fault_that_no_swap_takes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    assert search(World(lambda own, eager: True), monkeypatch).cause == "elsewhere"
    assert search(World(lambda own, eager: not eager), monkeypatch, enforce_eager=True).cause == "none"


def test_right_tokens_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(lambda own, eager: False)
    verdict = search(world, monkeypatch)
    assert (verdict.cause, verdict.mismatch, len(world.runs)) == ("none", None, 1)


def test_a_near_tie_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = search(World(lambda own, eager: True, lead=1e-5), monkeypatch)
    assert (verdict.cause, verdict.near_ties) == ("none", 1)


def test_the_reference_is_not_compared_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="is what is compared with"):
        search(World(lambda own, eager: True), monkeypatch, platform="reference")


def test_a_swap_lets_offers_say_no() -> None:
    table = SwappingTable(platform="thing", swap=Swap(specs=frozenset({WIDE.fingerprint()})))
    table.offer(RMSNormSpec, "thing.norm", lambda spec: Kernel(name="thing.norm", run=lambda x, w: x))
    assert table.choose(NARROW).name == "thing.norm"
    assert table.choose(WIDE).name == "reference"
    (_, choice) = table.choices
    assert choice.refused == (("thing.norm", "swapped to the reference, to find a fault"),)


def test_ops_keeps_its_own_flags(tenon: Callable[..., Any], tiny_model: Path) -> None:
    """The model before flags and after, and commands' help under their own names."""
    before = tenon("ops", "--platform", "reference", "--json", tiny_model).json()
    assert tenon("ops", tiny_model, "--json", "--platform", "reference").json() == before
    assert tenon("ops", tiny_model, "surplus").code == 2
    text = tenon("ops", "--help").out
    assert "record" in text and "bisect" in text and "--strict-ops" in text
    assert tenon("ops", "bisect", "--help").out.startswith("Usage: tenon ops bisect [OPTIONS] MODEL")
    assert tenon("ops", "record").code == 2


def test_an_op_that_is_not_recorded_is_refused(tenon: Callable[..., Any], tiny_model: Path) -> None:
    ran = tenon("ops", "record", tiny_model, "--op", "sampler")
    assert ran.code == 2 and "--op sampler: that op is not recorded" in ran.err
