"""Ops that multiply by weights: merged linears of every scheme, gated MLPs, mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tenon_platforms.dtypes import DType
from tenon_platforms.ops.linear import MergedLinearSpec
from tenon_platforms.ops.mlp import GatedMLPSpec
from tenon_platforms.ops.moe import MoESpec
from tenon_platforms.ops.normed import AddRMSNormThenSpec
from tenon_platforms.ops.weights import GatedMLPWeights, LinearWeights, MoEWeights, NormedWeights
from tenon_platforms.torch_dtypes import to_torch

from ...cases import specs
from ...cases.draws import RowsDraw, edge_draws, explore, row_draws, values
from ...cases.weights import exact_linear, exact_weight, generator, stored_linear, stored_part
from ...compare import assert_equal
from ...profile import Profile
from ...registry import Case, Check, ConformanceError, NotApplicableError
from ...subject import Subject
from ...truth import layers
from ...truth.rounding import Bounded, unit
from .activations import given, seen
from .running import bind, check_rows, weight_error

FILLS = ("normal", "mixed", "tiny", "zeros", "nan row")


def _stored_linear(profile: Profile, spec: MergedLinearSpec) -> tuple[LinearWeights, Callable[[Bounded], Bounded]]:
    """Weights as stored, and what float64 makes of rows with them."""
    stored = stored_linear(spec, generator(profile.salted(4)))
    weight = exact_linear(spec, stored)
    lost = max(weight_error(scheme, spec.dtype) for scheme in spec.schemes)
    return stored, lambda x: layers.biased(x, (weight, stored.bias, lost), spec.dtype)


def _stored_ffn(profile: Profile, spec: GatedMLPSpec) -> tuple[GatedMLPWeights, Callable[[Bounded], Bounded]]:
    """The same of a feed-forward."""
    dtype = spec.down.dtype
    stored = GatedMLPWeights(
        gate_up=stored_linear(spec.gate_up, generator(profile.salted(6))),
        down=stored_linear(spec.down, generator(profile.salted(7))),
    )
    gate_up, down = exact_linear(spec.gate_up, stored.gate_up), exact_linear(spec.down, stored.down)
    lost, down_lost = (max(weight_error(s, dtype) for s in one.schemes) for one in (spec.gate_up, spec.down))
    return stored, lambda x: layers.gated_mlp(
        x, gate_up, down, spec.activation, dtype, weight_error=lost, down_error=down_lost
    )


def merged_linear(subject: Subject, profile: Profile, case: Case) -> None:
    spec: MergedLinearSpec = case.value
    kernel = subject.choose(spec)
    stored, product = _stored_linear(profile, spec)
    held = bind(subject, kernel, stored, spec.op)
    large = 100.0 if spec.dtype == DType.FLOAT16 else 1e15

    def run(draw: RowsDraw) -> None:
        x = values((draw.tokens, spec.in_features), draw, to_torch(spec.dtype), large=large)
        x, rows = given(spec.schemes, x, draw.seed)
        truth = product(rows)
        check_rows(subject, kernel, draw, {"x": x}, lambda t: kernel.run(t["x"], held), [("y", truth, spec.dtype)])

    fills = (*FILLS, "large")
    explore(profile, edge_draws(profile, fills), row_draws(profile, fills), run)


def restore(subject: Subject, profile: Profile, case: Case) -> None:
    """What `prepare` did, `restore` undoes to the bit, where it is offered."""
    spec: MergedLinearSpec = case.value
    kernel = subject.choose(spec)
    if kernel.prepare is None or kernel.restore is None:
        raise NotApplicableError(f"{kernel.name} prepares irreversibly, and says so")
    stored = stored_linear(spec, generator(profile.salted(5)))
    back = kernel.restore(bind(subject, kernel, stored, spec.op))
    if not isinstance(back, LinearWeights):
        raise ConformanceError(f"restore of {kernel.name} returned {type(back).__name__}, expected LinearWeights")
    for place, (ours, theirs) in enumerate(zip(stored.parts, back.parts, strict=True)):
        for name, tensor in ours.items():
            assert_equal(subject.to_host(theirs[name]), tensor, what=f"part {place}, {name}, after restore")


def gated_mlp(subject: Subject, profile: Profile, case: Case) -> None:
    spec: GatedMLPSpec = case.value
    dtype = spec.down.dtype
    kernel = subject.choose(spec)
    stored, product = _stored_ffn(profile, spec)
    held = bind(subject, kernel, stored, spec.op)

    def run(draw: RowsDraw) -> None:
        x = values((draw.tokens, spec.gate_up.in_features), draw, to_torch(dtype))
        truth = product(Bounded.exact(x))
        check_rows(subject, kernel, draw, {"x": x}, lambda t: kernel.run(t["x"], held), [("y", truth, dtype)])

    explore(profile, edge_draws(profile, FILLS), row_draws(profile, FILLS), run)


def add_rms_norm_then(subject: Subject, profile: Profile, case: Case) -> None:
    """The norm's rows are rounded to their type before they are read, as its parts round them."""
    spec: AddRMSNormThenSpec = case.value
    norm, kernel = spec.norm.norm, subject.choose(spec)
    dtype = to_torch(norm.dtype)
    stored: LinearWeights | GatedMLPWeights
    if isinstance(spec.then, GatedMLPSpec):
        stored, product = _stored_ffn(profile, spec.then)
        schemes = spec.then.gate_up.schemes
    else:
        stored, product = _stored_linear(profile, spec.then)
        schemes = spec.then.schemes
    random = generator(profile.salted(9))
    weight = (torch.randn(norm.hidden, generator=random) * 0.3 + 1 - norm.weight_offset).to(dtype)
    held = bind(subject, kernel, NormedWeights(norm=weight, then=stored), spec.op)

    def run(draw: RowsDraw) -> None:
        x, residual = (values((draw.tokens, norm.hidden), draw, dtype, salt=salt) for salt in (0, 1))
        total = Bounded.exact(x).plus(Bounded.exact(residual))
        rows = layers.rms_norm(
            total.rounded(unit(norm.dtype)), weight.double(), norm.eps, norm.weight_offset, norm.dtype
        ).rounded(unit(norm.dtype))
        rows = seen(schemes, rows)
        check_rows(
            subject,
            kernel,
            draw,
            {"x": x, "residual": residual},
            lambda t: kernel.run(t["x"], t["residual"], held),
            [("y", product(rows), norm.dtype), ("sum", total, norm.dtype)],
        )

    explore(profile, edge_draws(profile, FILLS), row_draws(profile, FILLS), run)


def moe_layer(subject: Subject, profile: Profile, case: Case) -> None:
    spec: MoESpec = case.value
    kernel = subject.choose(spec)
    random = generator(profile.salted(8))
    inner = (spec.num_experts, spec.intermediate, spec.hidden)
    stored = MoEWeights(
        router=torch.randn(spec.num_experts, spec.hidden, generator=random).to(to_torch(spec.dtype)),
        gate=stored_part(spec.gate, inner, random),
        up=stored_part(spec.up, inner, random),
        down=stored_part(spec.down, (spec.num_experts, spec.hidden, spec.intermediate), random),
    )
    held = bind(subject, kernel, stored, spec.op)
    gate_up = torch.cat((exact_weight(spec.gate, stored.gate), exact_weight(spec.up, stored.up)), dim=1)
    down = exact_weight(spec.down, stored.down)

    def run(draw: RowsDraw) -> None:
        x = values((draw.tokens, spec.hidden), draw, to_torch(spec.dtype))
        healthy = x.masked_fill(x.isnan() | x.isinf(), 0) if draw.poisoned_row is not None else x
        truth, certain = layers.moe(
            Bounded.exact(healthy),
            stored.router.double(),
            gate_up,
            down,
            top_k=spec.top_k,
            renormalize=spec.renormalize,
            name=spec.activation,
            dtype=spec.dtype,
            weight_error=(weight_error(spec.gate, spec.dtype), weight_error(spec.down, spec.dtype)),
        )
        check_rows(
            subject, kernel, draw, {"x": x}, lambda t: kernel.run(t["x"], held), [("y", truth, spec.dtype)],
            certain=certain,
        )  # fmt: skip

    fills = ("normal", "mixed", "nan row")
    explore(profile, edge_draws(profile, fills), row_draws(profile, fills), run)


def served_as_claimed(subject: Subject, profile: Profile, case: Case) -> None:
    """A scheme is served the way the capabilities say: natively, emulated, or by expanding it."""
    spec: MergedLinearSpec = case.value
    kernel = subject.choose(spec)
    claims = {subject.capabilities.scheme(scheme.id) for scheme in spec.schemes}
    order = ("native", "emulated", "dequantize")
    worst = max((claim for claim in claims if claim in order), key=order.index)
    if kernel.native not in order or order.index(kernel.native) > order.index(worst):
        raise ConformanceError(
            f"{spec.schemes[0].id} is claimed as {worst!r}, but {kernel.name} serves it as {kernel.native!r}:"
            " correct Capabilities.schemes or the kernel's `native`"
        )


def _weights_of(subject: Subject, profile: Profile) -> list[Case]:
    return list(specs.linears(subject.capabilities, wide=profile.wide))


def _one_a_scheme(subject: Subject, profile: Profile) -> list[Case]:
    seen: dict[tuple[str, ...], Case] = {}
    for case in _weights_of(subject, profile):
        seen.setdefault(tuple(sorted({scheme.id for scheme in case.value.schemes})), case)
    return list(seen.values())


CHECKS = (
    Check(level="L2", name="merged_linear", what="products of every scheme", cases=_weights_of, run=merged_linear),
    Check(level="L2", name="restore", what="restore undoes prepare", cases=_one_a_scheme, run=restore),
    Check(
        level="L2",
        name="schemes",
        what="weights are served the way that is claimed",
        cases=_one_a_scheme,
        run=served_as_claimed,
        has_seed=False,
    ),
    Check(
        level="L2",
        name="gated_mlp",
        what="whole feed-forwards against float64",
        cases=lambda subject, profile: specs.gated_mlps(subject.capabilities),
        run=gated_mlp,
    ),
    Check(
        level="L2",
        name="add_rms_norm_then",
        what="a norm and what reads its rows, as one op",
        cases=lambda subject, profile: specs.normed(subject.capabilities),
        run=add_rms_norm_then,
    ),
    Check(
        level="L2",
        name="moe_layer",
        what="mixtures of experts against float64",
        cases=lambda subject, profile: specs.moes(subject.capabilities),
        run=moe_layer,
    ),
)
