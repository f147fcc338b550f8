"""Claims, the other way round: what is not offered is refused cleanly, and what is offered anyway is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import Kernel, No
from tenon_platforms.ops.linear import Dense, LinearPart, MergedLinearSpec
from tenon_platforms.ops.spec import Spec
from tenon_platforms.ops.table import OpTable

from ...cases import specs
from ...profile import Profile
from ...registry import Case, Check, ConformanceError, NotApplicableError
from ...subject import Subject
from . import attention, products, rowwise

ODD = (DType.FLOAT64, DType.INT8, DType.FLOAT8_E4M3)


@dataclass(slots=True, kw_only=True)
class RecordingTable(OpTable):
    """An op table that remembers what was offered."""

    offered_by_type: dict[type[Spec], list[tuple[str, Callable[[Any], Any], frozenset[str]]]] = field(
        default_factory=dict
    )

    def offer(self, spec_type: type[Spec], name: str, make: Callable[[Any], Any], **more: Any) -> None:
        """Remember, and offer."""
        known = frozenset(more.get("features", ()))
        self.offered_by_type.setdefault(spec_type, []).append((name, make, known))
        OpTable.offer(self, spec_type, name, make, **more)


def recorded(subject: Subject) -> RecordingTable:
    """What the platform offers."""
    table = RecordingTable(platform=subject.name)
    subject.platform.register_ops(table, subject.device)
    return table


def features(subject: Subject, profile: Profile, case: Case) -> None:
    """Every feature that an offer lists is one of its spec's, or of a spec inside it."""
    for spec_type, offers in recorded(subject).offered_by_type.items():
        known = {item.metadata["feature"] for item in fields(spec_type) if "feature" in item.metadata}
        inner = {"rms_norm.weight_offset", "rope.interleaved", "rope.axis_sections"}
        for name, _, listed in offers:
            unknown = listed - known - inner
            if unknown:
                raise ConformanceError(
                    f"the offer {name!r} for {spec_type.op} lists {', '.join(sorted(unknown))}, which no spec has:"
                    f" {spec_type.op} has {', '.join(sorted(known)) or 'none'}"
                )


def answers(subject: Subject, profile: Profile, case: Case) -> None:
    """An offer answers `Kernel`, or `No` with a reason, for specs that no platform serves; it never raises."""
    table = recorded(subject)
    if not table.offered_by_type:
        raise NotApplicableError("the platform offers no kernels")
    for spec in _odd_specs():
        for name, make, listed in table.offered_by_type.get(type(spec), ()):
            if spec.requires - listed:
                continue
            try:
                answer = make(spec)
            except Exception as error:
                raise ConformanceError(
                    f"the offer {name!r} raised {type(error).__name__} for {spec.summary()}: answer No with the reason"
                    f" ({error})"
                ) from error
            if isinstance(answer, No):
                if not answer.reason.strip():
                    raise ConformanceError(f"the offer {name!r} answered No without a reason to {spec.summary()}")
            elif not isinstance(answer, Kernel):
                raise ConformanceError(f"the offer {name!r} answered {answer!r}: expected Kernel or No")


def _odd_specs() -> list[Spec]:
    """Specs at the edge of what could be asked: types that nobody computes in, sizes that no tile likes."""
    made: list[Spec] = []
    for dtype in ODD:
        part = LinearPart(name="w", out_features=3, scheme=Dense(stored=dtype))
        made.append(MergedLinearSpec(in_features=5, parts=(part,), dtype=dtype))
        made += [case.value for case in specs.norms((dtype,), wide=False)]
        made += [case.value for case in specs.add_norms((dtype,), wide=False)]
        made += [case.value for case in specs.activations((dtype,))]
        made += [case.value for case in specs.kv_writes((dtype,), "a layout of somebody else")]
        made += [case.value for case in attention.attention_specs((dtype,), ())]
    plain = attention.attention_specs((DType.FLOAT32,), ())[0].value
    made += [replace(plain, head_dim=7), replace(plain, num_heads=5, num_kv_heads=2), replace(plain, kv_dtype=ODD[0])]
    return made


def unclaimed(subject: Subject, profile: Profile, case: Case) -> None:
    """A type that is not claimed is refused by every offer; one that is accepted all the same must be right."""
    dtype: DType = case.value
    table = recorded(subject)
    accepted = 0
    for cases, run in (
        (list(specs.norms((dtype,), wide=False)), rowwise.rms_norm),
        (list(specs.activations((dtype,))), rowwise.activation_mul),
        (attention.attention_specs((dtype,), ())[:2], attention.attention),
        ([Case(id="linear", value=_linear(dtype))], products.merged_linear),
    ):
        for one in cases:
            for _, make, listed in table.offered_by_type.get(type(one.value), ()):
                if not one.value.requires - listed and isinstance(make(one.value), Kernel):
                    run(subject, profile, one)
                    accepted += 1
    if not accepted and not table.offered_by_type:
        raise NotApplicableError("the platform offers no kernels")


def _linear(dtype: DType) -> MergedLinearSpec:
    part = LinearPart(name="w", out_features=48, scheme=Dense(stored=dtype))
    return MergedLinearSpec(in_features=64, parts=(part,), dtype=dtype)


def _unclaimed(subject: Subject, profile: Profile) -> list[Case]:
    claimed = specs.claimed(subject.capabilities)
    return [Case(id=str(dtype), value=dtype) for dtype in specs.COMPUTE if dtype not in claimed]


CHECKS = (
    Check(level="L2", name="features", what="offers list features that exist", run=features, has_seed=False),
    Check(
        level="L2",
        name="refusals",
        what="offers refuse with a reason and never raise",
        run=answers,
        has_seed=False,
    ),
    Check(
        level="L2",
        name="unclaimed",
        what="unclaimed types are refused, or right",
        cases=_unclaimed,
        run=unclaimed,
    ),
)
