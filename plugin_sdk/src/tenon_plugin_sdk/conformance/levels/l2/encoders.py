"""Ops of encoders and pooling models: layer norms, ungated feed-forwards, the mean of each row's states."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.ops.mlp import MLPSpec
from tenon_platforms.ops.norm import LayerNormSpec
from tenon_platforms.ops.pooling import MeanPoolSpec
from tenon_platforms.ops.weights import MLPWeights, NormWeights
from tenon_platforms.torch_dtypes import to_torch

from ...buffers import Buffers
from ...cases import specs
from ...cases.draws import RowsDraw, edge_draws, explore, row_draws, values
from ...cases.weights import exact_linear, generator, stored_linear
from ...compare import assert_close
from ...profile import Profile
from ...registry import Case, Check
from ...subject import Subject
from ...truth import layers
from ...truth.rounding import U32, Bounded, sum_error
from .running import bind, check_rows, weight_error

FILLS = ("normal", "mixed", "tiny", "zeros", "nan row")
NUM_VALID = 3  # entries of `num_valid`; the first counts tokens


def layer_norm(subject: Subject, profile: Profile, case: Case) -> None:
    spec: LayerNormSpec = case.value
    dtype = to_torch(spec.dtype)
    kernel = subject.choose(spec)
    random = generator(profile.salted(31))
    weight = (torch.randn(spec.hidden, generator=random) * 0.3 + 1).to(dtype)
    bias = torch.randn(spec.hidden, generator=random).to(dtype)
    held = bind(subject, kernel, NormWeights(weight=weight, bias=bias), spec.op)

    def run(draw: RowsDraw) -> None:
        x = values((draw.tokens, spec.hidden), draw, dtype)
        truth = layers.layer_norm(Bounded.exact(x), weight.double(), bias.double(), spec.eps)
        check_rows(subject, kernel, draw, {"x": x}, lambda t: kernel.run(t["x"], held), [("y", truth, spec.dtype)])

    explore(profile, edge_draws(profile, FILLS), row_draws(profile, FILLS), run)


def mlp(subject: Subject, profile: Profile, case: Case) -> None:
    spec: MLPSpec = case.value
    dtype = spec.down.dtype
    kernel = subject.choose(spec)
    stored = MLPWeights(
        up=stored_linear(spec.up, generator(profile.salted(32))),
        down=stored_linear(spec.down, generator(profile.salted(33))),
    )
    held = bind(subject, kernel, stored, spec.op)
    sides = [
        (exact_linear(linear, given), given.bias, max(weight_error(scheme, dtype) for scheme in linear.schemes))
        for linear, given in ((spec.up, stored.up), (spec.down, stored.down))
    ]

    def run(draw: RowsDraw) -> None:
        x = values((draw.tokens, spec.up.in_features), draw, to_torch(dtype))
        truth = layers.mlp(Bounded.exact(x), sides[0], sides[1], spec.activation, dtype)
        check_rows(subject, kernel, draw, {"x": x}, lambda t: kernel.run(t["x"], held), [("y", truth, dtype)])

    explore(profile, edge_draws(profile, FILLS), row_draws(profile, FILLS), run)


def mean_pool(subject: Subject, profile: Profile, case: Case) -> None:
    """Rows of one, of many and of no tokens; padding is NaN, and so is one token of one row."""
    spec: MeanPoolSpec = case.value
    kernel = subject.choose(spec)

    def run(draw: RowsDraw) -> None:
        x = values((draw.tokens, spec.hidden), draw, to_torch(spec.dtype))
        starts = row_starts(draw)
        valid = int(starts[-1])
        x[valid:] = float("nan")
        rows = torch.zeros(draw.tokens, dtype=torch.int32)
        rows[:valid] = torch.repeat_interleave(
            torch.arange(len(starts) - 1, dtype=torch.int32), (starts[1:] - starts[:-1]).long()
        )
        truth = means(x, starts)
        healthy = torch.ones(len(starts) - 1, 1, dtype=torch.bool)
        if draw.poisoned_row is not None and draw.poisoned_row < valid:
            healthy[int(rows[draw.poisoned_row])] = False
        given = {"x": x, "token_rows": rows, "query_starts": starts, "num_valid": torch.full((NUM_VALID,), valid)}
        with subject.device.inference_context():
            buffers = Buffers(subject)
            held: Mapping[str, Tensor] = {
                name: buffers.put(
                    name, value if name == "x" else value.int(), draw.layout if name == "x" else "contiguous"
                )
                for name, value in given.items()
            }
            found = subject.to_host(kernel.run(*held.values()))
            assert_close(found, truth, DType.FLOAT32, what=f"means of {kernel.name}", valid=healthy)
            buffers.check(may_change=kernel.flags.in_place)

    explore(profile, edge_draws(profile, FILLS), row_draws(profile, FILLS), run)


def row_starts(draw: RowsDraw) -> Tensor:
    """int32 [rows + 1]: ascending cuts, the first 0; equal neighbours are rows without tokens, the rest is padding."""
    random = generator(draw.seed + 9)
    count = int(torch.randint(1, 6, (1,), generator=random))
    cuts = torch.randint(0, draw.tokens + 1, (count,), generator=random, dtype=torch.int32)
    return torch.cat((torch.zeros(1, dtype=torch.int32), cuts.sort().values))


def means(x: Tensor, starts: Tensor) -> Bounded:
    """float64 means of [starts[i], starts[i + 1]), sums taken to be kept in float32; zero of nothing."""
    value = torch.zeros(len(starts) - 1, x.shape[1], dtype=torch.float64)
    error = torch.zeros_like(value)
    for row, (begin, end) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        if end > begin:
            part = x[begin:end].double()
            value[row] = part.mean(dim=0)
            error[row] = sum_error(end - begin) * part.norm(dim=0) / (end - begin) ** 0.5
    return Bounded(value, error).rounded(U32, 2)


CHECKS = (
    Check(
        level="L2",
        name="layer_norm",
        what="layer norm against float64",
        cases=lambda subject, profile: specs.layer_norms(specs.claimed(subject.capabilities)),
        run=layer_norm,
    ),
    Check(
        level="L2",
        name="mlp",
        what="ungated feed-forwards against float64",
        cases=lambda subject, profile: specs.mlps(subject.capabilities),
        run=mlp,
    ),
    Check(
        level="L2",
        name="mean_pool",
        what="means of ragged rows; padding and neighbours never reach them",
        cases=lambda subject, profile: specs.mean_pools(specs.claimed(subject.capabilities)),
        run=mean_pool,
    ),
)
