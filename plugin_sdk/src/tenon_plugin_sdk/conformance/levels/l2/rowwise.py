"""Ops on rows without products of weights: norms, activations, rotations, lookups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.ops.norm import AddRMSNormSpec
from tenon_platforms.ops.rope_reference import rope_table
from tenon_platforms.torch_dtypes import to_torch

from ...cases import specs
from ...cases.draws import RowsDraw, edge_draws, explore, row_draws, values
from ...cases.weights import exact_weight, generator, stored_part
from ...profile import Profile
from ...registry import Case, Check
from ...subject import Subject
from ...truth import layers
from ...truth.rounding import Bounded, unit
from .running import bind, check_rows, weight_error

PLAIN_FILLS = ("normal", "mixed", "tiny", "zeros", "nan row")


def _large(dtype: DType) -> float:
    """The greatest values whose squares a float32 sum of a few thousand can hold."""
    return 6e4 if dtype == DType.FLOAT16 else 1e16


def rms_norm(subject: Subject, profile: Profile, case: Case) -> None:
    spec = case.value
    dtype = to_torch(spec.dtype)
    kernel = subject.choose(spec)
    weight = (torch.randn(spec.hidden, generator=generator(profile.salted(1))) * 0.3 + 1 - spec.weight_offset).to(dtype)
    held = bind(subject, kernel, weight, spec.op)

    def run(draw: RowsDraw) -> None:
        x = values((draw.tokens, spec.hidden), draw, dtype, large=_large(spec.dtype))
        truth = layers.rms_norm(Bounded.exact(x), weight.double(), spec.eps, spec.weight_offset, spec.dtype)
        check_rows(subject, kernel, draw, {"x": x}, lambda t: kernel.run(t["x"], held), [("y", truth, spec.dtype)])

    explore(profile, edge_draws(profile), row_draws(profile), run)


def add_rms_norm(subject: Subject, profile: Profile, case: Case) -> None:
    spec: AddRMSNormSpec = case.value
    norm = spec.norm
    dtype = to_torch(norm.dtype)
    kernel = subject.choose(spec)
    weight = (torch.randn(norm.hidden, generator=generator(profile.salted(2))) * 0.3 + 1 - norm.weight_offset).to(dtype)
    held = bind(subject, kernel, weight, spec.op)

    def run(draw: RowsDraw) -> None:
        shape = (draw.tokens, norm.hidden)
        x, residual = (values(shape, draw, dtype, large=_large(norm.dtype) / 4, salt=salt) for salt in (0, 1))
        total = Bounded.exact(x).plus(Bounded.exact(residual))
        truth = layers.rms_norm(
            total.rounded(unit(norm.dtype)), weight.double(), norm.eps, norm.weight_offset, norm.dtype
        )
        check_rows(
            subject,
            kernel,
            draw,
            {"x": x, "residual": residual},
            lambda t: kernel.run(t["x"], t["residual"], held),
            [("y", truth, norm.dtype), ("sum", total, norm.dtype)],
        )

    explore(profile, edge_draws(profile), row_draws(profile), run)


def activation_mul(subject: Subject, profile: Profile, case: Case) -> None:
    spec = case.value
    kernel = subject.choose(spec)

    def run(draw: RowsDraw) -> None:
        x = values((draw.tokens, 2 * spec.features), draw, to_torch(spec.dtype), large=200.0)
        truth = layers.activation_mul(Bounded.exact(x), spec.activation, spec.dtype)
        check_rows(subject, kernel, draw, {"x": x}, lambda t: kernel.run(t["x"]), [("y", truth, spec.dtype)])

    explore(profile, edge_draws(profile), row_draws(profile), run)


def rope(subject: Subject, profile: Profile, case: Case) -> None:
    dtype, spec = case.value
    kernel = subject.choose(spec)
    table = rope_table(spec)
    held = subject.to_device(table)
    axes = len(spec.axis_sections) or 1

    def run(draw: RowsDraw) -> None:
        q, k = (values((draw.tokens, heads, spec.head_dim), draw, to_torch(dtype), salt=heads) for heads in (4, 2))
        positions = positions_of(draw, spec.max_positions, axes)
        truth = [layers.rope(Bounded.exact(x), positions.T, table, spec, dtype) for x in (q, k)]

        def call(t: Mapping[str, Tensor]) -> object:
            return kernel.run(t["q"], t["k"], t["positions"].T.contiguous(), held)

        rows = {"q": q, "k": k, "positions": positions}
        check_rows(subject, kernel, draw, rows, call, [("q", truth[0], dtype), ("k", truth[1], dtype)])

    explore(profile, edge_draws(profile, PLAIN_FILLS), row_draws(profile, PLAIN_FILLS), run)


def positions_of(draw: RowsDraw, max_positions: int, axes: int) -> Tensor:
    """int32 [tokens, axes], the ends among them."""
    random = generator(draw.seed + 5)
    positions = torch.randint(0, max_positions, (draw.tokens, axes), generator=random, dtype=torch.int32)
    positions[:1], positions[-1:] = (0, max_positions - 1) if draw.tokens > 1 else (draw.seed % max_positions,) * 2
    return positions


def embedding(subject: Subject, profile: Profile, case: Case) -> None:
    spec = case.value
    kernel = subject.choose(spec)
    stored = stored_part(spec.scheme, (spec.vocab_size, spec.hidden), generator(profile.salted(3)))
    held = bind(subject, kernel, stored, spec.op)
    table = Bounded.exact(exact_weight(spec.scheme, stored)).rounded(weight_error(spec.scheme, spec.dtype))

    def run(draw: RowsDraw) -> None:
        random = generator(draw.seed)
        ids = torch.randint(0, spec.vocab_size, (draw.tokens,), generator=random, dtype=torch.int32)
        ids[:1], ids[-1:] = 0, spec.vocab_size - 1
        truth = table[ids.long()]
        if spec.scale != 1.0:
            truth = truth.scaled(spec.scale).rounded(unit(spec.dtype), 2)
        check_rows(
            subject, kernel, draw, {"token_ids": ids}, lambda t: kernel.run(t["token_ids"], held),
            [("y", truth, spec.dtype)],
        )  # fmt: skip

    explore(profile, edge_draws(profile, ("normal",)), row_draws(profile, ("normal",)), run)


def _norms(subject: Subject, profile: Profile) -> Iterable[Case]:
    return specs.norms(specs.claimed(subject.capabilities), wide=profile.wide)


def _add_norms(subject: Subject, profile: Profile) -> Iterable[Case]:
    return specs.add_norms(specs.claimed(subject.capabilities), wide=profile.wide)


CHECKS = (
    Check(level="L2", name="rms_norm", what="RMS norm against float64", cases=_norms, run=rms_norm),
    Check(level="L2", name="add_rms_norm", what="residual add and norm", cases=_add_norms, run=add_rms_norm),
    Check(
        level="L2",
        name="activation_mul",
        what="gated activations against float64",
        cases=lambda subject, profile: specs.activations(specs.claimed(subject.capabilities)),
        run=activation_mul,
    ),
    Check(
        level="L2",
        name="rope",
        what="rotary positions: whole, partial, interleaved, several axes, scaled",
        cases=lambda subject, profile: specs.ropes(specs.claimed(subject.capabilities)),
        run=rope,
    ),
    Check(
        level="L2",
        name="embedding",
        what="lookups in dense and quantized tables",
        cases=lambda subject, profile: specs.embeddings(subject.capabilities),
        run=embedding,
    ),
)
