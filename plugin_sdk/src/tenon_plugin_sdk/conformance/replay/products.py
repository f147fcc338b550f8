"""Replays of ops with weights, against float64 from the recorded inputs and the stored weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tenon_platforms.ops.embedding import EmbeddingSpec
from tenon_platforms.ops.linear import MergedLinearSpec
from tenon_platforms.ops.mlp import GatedMLPSpec
from tenon_platforms.ops.moe import MoESpec
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec
from tenon_platforms.ops.normed import AddRMSNormThenSpec
from tenon_platforms.ops.quantized_reference import ROUNDING
from tenon_platforms.ops.weights import GatedMLPWeights, LinearWeights

from ..cases.weights import exact_linear, exact_weight
from ..levels.l2.running import bind, weight_error
from ..registry import NotApplicableError
from ..subject import Subject
from ..truth import layers
from ..truth.rounding import Bounded, unit
from .calling import call_rows
from .case_file import RecordedCase


def rms_norm(subject: Subject, case: RecordedCase) -> None:
    spec: Any = case.spec
    assert isinstance(spec, RMSNormSpec)
    truth = layers.rms_norm(
        Bounded.exact(case.inputs["x"]), case.weights.double(), spec.eps, spec.weight_offset, spec.dtype
    )
    kernel = subject.choose(spec)
    held = bind(subject, kernel, case.weights, spec.op)
    call_rows(subject, kernel, case.inputs, lambda t: kernel.run(t["x"], held), [("y", truth, spec.dtype)])


def add_rms_norm(subject: Subject, case: RecordedCase) -> None:
    spec: Any = case.spec
    assert isinstance(spec, AddRMSNormSpec)
    norm, x = spec.norm, case.inputs
    truth, total = _normed(spec, x, case.weights)
    kernel = subject.choose(spec)
    held = bind(subject, kernel, case.weights, spec.op)
    call_rows(
        subject,
        kernel,
        x,
        lambda t: kernel.run(t["x"], t["residual"], held),
        [("y", truth, norm.dtype), ("sum", total, norm.dtype)],
    )


def add_rms_norm_then(subject: Subject, case: RecordedCase) -> None:
    spec: Any = case.spec
    assert isinstance(spec, AddRMSNormThenSpec)
    dtype, stored = spec.norm.norm.dtype, case.weights
    rows, total = _normed(spec.norm, case.inputs, stored.norm)
    rows, then = rows.rounded(unit(dtype)), spec.then
    truth = _ffn(then, stored.then, rows) if isinstance(then, GatedMLPSpec) else _linear(then, stored.then, rows)
    kernel = subject.choose(spec)
    held = bind(subject, kernel, stored, spec.op)
    call_rows(
        subject,
        kernel,
        case.inputs,
        lambda t: kernel.run(t["x"], t["residual"], held),
        [("y", truth, dtype), ("sum", total, dtype)],
    )


def _normed(spec: AddRMSNormSpec, given: Mapping[str, Tensor], weight: Tensor) -> tuple[Bounded, Bounded]:
    """(normalized rows, sum), neither rounded yet."""
    norm, total = spec.norm, Bounded.exact(given["x"]).plus(Bounded.exact(given["residual"]))
    rounded = total.rounded(unit(norm.dtype))
    return layers.rms_norm(rounded, weight.double(), norm.eps, norm.weight_offset, norm.dtype), total


def _linear(spec: MergedLinearSpec, stored: LinearWeights, x: Bounded) -> Bounded:
    _no_rounding(spec)
    lost = max(weight_error(scheme, spec.dtype) for scheme in spec.schemes)
    return layers.biased(x, (exact_linear(spec, stored), stored.bias, lost), spec.dtype)


def _ffn(spec: GatedMLPSpec, stored: GatedMLPWeights, x: Bounded) -> Bounded:
    _no_rounding(spec.gate_up, spec.down)
    dtype = spec.down.dtype
    return layers.gated_mlp(
        x,
        exact_linear(spec.gate_up, stored.gate_up),
        exact_linear(spec.down, stored.down),
        spec.activation,
        dtype,
        weight_error=max(weight_error(scheme, dtype) for scheme in spec.gate_up.schemes),
        down_error=max(weight_error(scheme, dtype) for scheme in spec.down.schemes),
    )


def merged_linear(subject: Subject, case: RecordedCase) -> None:
    spec: Any = case.spec
    assert isinstance(spec, MergedLinearSpec)
    stored, x = case.weights, case.inputs["x"]
    truth = _linear(spec, stored, Bounded.exact(x))
    kernel = subject.choose(spec)
    held = bind(subject, kernel, stored, spec.op)
    call_rows(subject, kernel, {"x": x}, lambda t: kernel.run(t["x"], held), [("y", truth, spec.dtype)])


def embedding(subject: Subject, case: RecordedCase) -> None:
    spec: Any = case.spec
    assert isinstance(spec, EmbeddingSpec)
    ids = case.inputs["token_ids"]
    rows = {name: tensor.index_select(0, ids.long()) for name, tensor in case.weights.items()}  # the rest is not read
    truth = Bounded.exact(exact_weight(spec.scheme, rows)).rounded(weight_error(spec.scheme, spec.dtype))
    if spec.scale != 1.0:
        truth = truth.scaled(spec.scale).rounded(unit(spec.dtype), 2)
    kernel = subject.choose(spec)
    held = bind(subject, kernel, case.weights, spec.op)
    call_rows(
        subject, kernel, {"token_ids": ids}, lambda t: kernel.run(t["token_ids"], held), [("y", truth, spec.dtype)]
    )


def gated_mlp(subject: Subject, case: RecordedCase) -> None:
    spec: Any = case.spec
    assert isinstance(spec, GatedMLPSpec)
    dtype, x = spec.down.dtype, case.inputs["x"]
    truth = _ffn(spec, case.weights, Bounded.exact(x))
    kernel = subject.choose(spec)
    held = bind(subject, kernel, case.weights, spec.op)
    call_rows(subject, kernel, {"x": x}, lambda t: kernel.run(t["x"], held), [("y", truth, dtype)])


def moe_layer(subject: Subject, case: RecordedCase) -> None:
    spec: Any = case.spec
    assert isinstance(spec, MoESpec)
    x, stored = case.inputs["x"], case.weights
    parts = (exact_weight(spec.gate, stored.gate), exact_weight(spec.up, stored.up))
    truth, certain = layers.moe(
        Bounded.exact(x),
        stored.router.double(),
        torch.cat(parts, dim=1),
        exact_weight(spec.down, stored.down),
        top_k=spec.top_k,
        renormalize=spec.renormalize,
        name=spec.activation,
        dtype=spec.dtype,
        weight_error=(weight_error(spec.gate, spec.dtype), weight_error(spec.down, spec.dtype)),
    )
    kernel = subject.choose(spec)
    held = bind(subject, kernel, stored, spec.op)
    call_rows(
        subject, kernel, {"x": x}, lambda t: kernel.run(t["x"], held), [("y", truth, spec.dtype)], certain=certain
    )


def activation_mul(subject: Subject, case: RecordedCase) -> None:
    spec: Any = case.spec
    x: Tensor = case.inputs["x"]
    truth = layers.activation_mul(Bounded.exact(x), spec.activation, spec.dtype)
    kernel = subject.choose(spec)
    call_rows(subject, kernel, {"x": x}, lambda t: kernel.run(t["x"]), [("y", truth, spec.dtype)])


def _no_rounding(*specs: MergedLinearSpec) -> None:
    if any(isinstance(scheme, ROUNDING) for spec in specs for scheme in spec.schemes):
        raise NotApplicableError("activations quantized as they come have no bound yet")
