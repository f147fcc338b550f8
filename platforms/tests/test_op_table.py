"""The op table: who is asked in which order, what is refused and why, and that old plugins never serve new features."""

from __future__ import annotations

import dataclasses

import pytest

from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError, PluginError
from tenon_platforms.kernel import Kernel, KernelFlags, No
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec
from tenon_platforms.ops.spec import Spec
from tenon_platforms.ops.table import OpTable

pytestmark = pytest.mark.unit
NORM = RMSNormSpec(hidden=8, eps=1e-6, dtype=DType.FLOAT32)
GEMMA = dataclasses.replace(NORM, weight_offset=1.0)


def kernel(name: str, *, invariant: bool = False) -> Kernel:
    return Kernel(name=name, run=lambda x, weight: name, flags=KernelFlags(batch_invariant=invariant))


def table(**fields: bool) -> OpTable:
    return OpTable(platform="toy", **fields)


def test_the_reference_serves_what_nobody_offers() -> None:
    ops = table()
    assert ops.choose(NORM).name == "reference"
    (choice,) = ops.choices
    assert choice.on_reference and choice.refused == ()
    assert ops.reference_line() == "1 of 1 ops on the reference path: rms_norm"
    assert OpTable(platform="reference").reference_line() is None


def test_higher_priority_is_asked_first_then_the_earlier_offer() -> None:
    ops, asked = table(), []

    def refuse(name: str) -> None:
        def make(spec: Spec) -> No:
            asked.append(name)
            return No(f"{name} says no", alternative="try tea")

        ops.offer(RMSNormSpec, name, make, priority=priorities[name])

    priorities = {"low": -1, "first": 0, "second": 0, "high": 5}
    for name in ("low", "first", "second", "high"):
        refuse(name)
    assert ops.choose(NORM).name == "reference"
    assert asked == ["high", "first", "second", "low"]
    assert ops.choices[0].refused[0] == ("high", "high says no; instead: try tea")


def test_a_choice_is_made_once_and_counted() -> None:
    ops, made = table(), []

    def make(spec: RMSNormSpec) -> Kernel:
        made.append(spec)
        return kernel("mine")

    ops.offer(RMSNormSpec, "mine", make, owner="toy-plugin")
    assert ops.choose(NORM) is ops.choose(dataclasses.replace(NORM))
    ops.choose(dataclasses.replace(NORM, hidden=16))
    assert len(made) == 2
    assert [(choice.num_uses, choice.source) for choice in ops.choices] == [(2, "toy-plugin"), (1, "toy-plugin")]
    assert ops.reference_line() is None


def test_a_name_twice_names_both_owners() -> None:
    ops = table()
    ops.offer(RMSNormSpec, "fast", lambda spec: kernel("a"), owner="tenon-a")
    ops.offer(AddRMSNormSpec, "fast", lambda spec: kernel("b"), owner="tenon-b")  # another op: no clash
    with pytest.raises(PluginError, match=r"'fast' for rms_norm is made twice: by tenon-a and by tenon-b"):
        ops.offer(RMSNormSpec, "fast", lambda spec: kernel("b"), owner="tenon-b")


def test_an_offer_that_does_not_know_a_feature_is_never_asked() -> None:
    ops = table()

    def old(spec: RMSNormSpec) -> Kernel:
        assert spec.weight_offset == 0.0, "an old plugin was asked for what it does not know"
        return kernel("old")

    ops.offer(RMSNormSpec, "old", old, priority=10)
    assert ops.choose(NORM).name == "old"
    assert ops.choose(GEMMA).name == "reference"
    assert ops.choices[1].refused == (("old", "does not know the feature rms_norm.weight_offset"),)
    ops.offer(RMSNormSpec, "new", lambda spec: kernel("new"), features={"rms_norm.weight_offset"})
    assert ops.choose(dataclasses.replace(GEMMA, hidden=16)).name == "new"


def test_an_offer_that_raises_is_named_with_the_spec() -> None:
    ops = table()
    ops.offer(RMSNormSpec, "toy.broken", lambda spec: spec.no_such_field)
    with pytest.raises(PluginError, match=r"'toy\.broken' of toy.*rms_norm\(hidden=8.*AttributeError.*no_such_field"):
        ops.choose(NORM)


def test_a_contract_error_of_an_offer_stays_what_it_is() -> None:
    def refuse(spec: RMSNormSpec) -> Kernel:
        raise ConfigError("streams must be even")

    ops = table()
    ops.offer(RMSNormSpec, "toy.norm", refuse)
    with pytest.raises(ConfigError, match=r"^streams must be even$"):
        ops.choose(NORM)


def test_an_offer_without_an_answer_is_told_and_not_passed_over() -> None:
    ops = table()
    ops.offer(RMSNormSpec, "toy.silent", lambda spec: None)
    with pytest.raises(PluginError, match=r"'toy\.silent' of toy.*answers None: expected Kernel or No"):
        ops.choose(NORM)


def test_a_composite_decomposes_through_the_table() -> None:
    ops = table()
    ops.offer(RMSNormSpec, "mine", lambda spec: kernel("mine"))
    ops.choose(AddRMSNormSpec(norm=NORM))
    sources = {choice.spec.op: choice.source for choice in ops.choices}
    assert sources == {"add_rms_norm": "decomposed", "rms_norm": "toy"}
    assert ops.reference_line() is None


def test_a_composites_part_with_an_unknown_feature_goes_to_the_reference() -> None:
    ops = table()
    ops.offer(AddRMSNormSpec, "fused", lambda spec: kernel("fused"))
    assert ops.choose(AddRMSNormSpec(norm=NORM)).name == "fused"
    assert ops.choose(AddRMSNormSpec(norm=GEMMA)).name == "add + rms_norm"


def test_strict_refuses_the_reference_but_not_decomposition() -> None:
    ops = table(strict=True)
    with pytest.raises(ConfigError, match=r"--strict-ops: platform .toy. has no kernel") as found:
        ops.choose(NORM)
    assert "rms_norm(hidden=8" in found.value.message and "nothing is offered for it" in found.value.message
    assert found.value.remedy is not None and "--strict-ops" in found.value.remedy
    ops.offer(RMSNormSpec, "mine", lambda spec: kernel("mine"))
    assert ops.choose(AddRMSNormSpec(norm=NORM)).name == "add + rms_norm"
    assert OpTable(platform="reference", strict=True).choose(NORM).name == "reference"


def test_batch_invariant_takes_only_kernels_that_are() -> None:
    ops = table(batch_invariant=True)
    ops.offer(RMSNormSpec, "fast", lambda spec: kernel("fast"), priority=9)
    ops.offer(RMSNormSpec, "steady", lambda spec: kernel("steady", invariant=True))
    assert ops.choose(NORM).name == "steady"
    assert ops.choices[0].refused == (("fast", "is not batch-invariant"),)


def test_an_op_without_reference_or_offer_is_refused_by_name() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Odd(Spec):
        op = "odd"
        size: int

    ops = table()
    with pytest.raises(ConfigError, match=r"no kernel serves odd\(size=3\): nothing is offered for it"):
        ops.choose(Odd(size=3))
    assert ops.offered(Odd(size=3)) is None
    ops.offer(Odd, "one", lambda spec: kernel("one"))
    first = ops.offered(Odd(size=4))
    assert first is not None and ops.offered(Odd(size=4)) is first
    assert next(choice for choice in ops.choices if choice.spec == Odd(size=4)).num_uses == 2


def test_context_tells_choices_apart() -> None:
    from tenon_platforms.device import Device
    from tenon_platforms.ops.attention import AttentionSpec
    from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec

    ops = OpTable(platform="reference")
    spec = AttentionSpec(
        num_heads=1, num_kv_heads=1, head_dim=8, scale=1.0, dtype=DType.FLOAT32, kv_dtype=DType.FLOAT32
    )
    write = QKNormRopeKVWriteSpec(num_heads=1, num_kv_heads=1, head_dim=8, dtype=DType.FLOAT32, layout_id="x")
    one, two = (ops.choose(dataclasses.replace(spec, sliding_window=window), Device()).backend for window in (0, 4))
    assert ops.choose(write, one) is ops.choose(write, one)
    assert ops.choose(write, one) is not ops.choose(write, two)
