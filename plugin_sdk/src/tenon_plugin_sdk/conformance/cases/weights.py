"""Weights for the cases, as a checkpoint would hold them: dense tensors, and random valid blocks of every GGML type."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from tenon_platforms.formats.gguf_types import BY_NAME
from tenon_platforms.ops.linear import Dense, GGUFBlocks, MergedLinearSpec, WeightScheme
from tenon_platforms.ops.linear_reference import dense_weight
from tenon_platforms.ops.weights import LinearWeights, PartTensors
from tenon_platforms.torch_dtypes import to_torch

from ..subject import Subject
from . import quantized

# Where a block's float16 scales lie: byte offsets, by type (ggml-common.h).
_SCALES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}


def stored_part(scheme: WeightScheme, shape: tuple[int, ...], random: torch.Generator) -> PartTensors:
    """One part's tensors of shape [..., out, in]."""
    scale = shape[-1] ** -0.5
    if isinstance(scheme, Dense):
        return {"weight": (torch.randn(shape, generator=random) * scale).to(to_torch(scheme.stored))}
    if not isinstance(scheme, GGUFBlocks):
        return quantized.stored(scheme, shape, random)
    kind = BY_NAME[scheme.type]
    blocks = torch.randint(
        0, 256, (*shape[:-1], shape[-1] // kind.elements, kind.bytes), generator=random, dtype=torch.uint8
    )
    for offset in _SCALES[scheme.type]:
        steps = (torch.rand(blocks.shape[:-1], generator=random) * 0.9 + 0.1) * 0.02 * scale
        blocks[..., offset : offset + 2] = steps.half()[..., None].view(torch.uint8)
    return {"blocks": blocks.flatten(-2)}


def stored_linear(spec: MergedLinearSpec, random: torch.Generator) -> LinearWeights:
    """A merged linear's weights."""
    parts = tuple(stored_part(part.scheme, (part.out_features, spec.in_features), random) for part in spec.parts)
    bias = torch.randn(spec.out_features, generator=random).to(to_torch(spec.dtype)) if spec.bias else None
    return LinearWeights(parts=parts, bias=bias)


def exact_weight(scheme: WeightScheme, tensors: PartTensors) -> Tensor:
    """What the stored tensors mean, in float64."""
    return dense_weight(scheme, tensors, torch.float64)


def exact_linear(spec: MergedLinearSpec, weights: LinearWeights) -> Tensor:
    """[out, in] of all parts, in float64."""
    return torch.cat(
        [exact_weight(part.scheme, tensors) for part, tensors in zip(spec.parts, weights.parts, strict=True)]
    )


def to_device(subject: Subject, weights: Any) -> Any:
    """Checkpoint weights with their tensors on the device, as a model's builder hands them to `prepare`."""
    if isinstance(weights, Tensor):
        return subject.to_device(weights)
    if isinstance(weights, dict):
        return {name: subject.to_device(value) for name, value in weights.items()}
    if isinstance(weights, tuple):
        return tuple(to_device(subject, part) for part in weights)
    if weights is None:
        return None
    moved = {one.name: to_device(subject, getattr(weights, one.name)) for one in dataclasses.fields(weights)}
    return type(weights)(**moved)


def generator(seed: int) -> torch.Generator:
    """A host generator of its own."""
    return torch.Generator().manual_seed(seed)
