"""The native mixture of experts at the edges of what it is given: strides of one token, a router that is no number."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tenon_cpu import native
from tenon_cpu.native_linear import NativeLinear, pack_dense
from tenon_cpu.native_moe import NativeMoE

pytestmark = [pytest.mark.unit, pytest.mark.skipif(native.library() is None, reason="no native library")]
EXPERTS, HIDDEN, INNER = 4, 32, 16


def made(router: Tensor, *, renormalize: bool = True) -> NativeMoE:
    """Experts of random weights, two of which a token goes through."""
    experts = []
    for _ in range(EXPERTS):
        gate, up, down = (pack_dense(torch.randn(size)) for size in ((INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)))
        experts.append((NativeLinear([gate, up], silu_mul=True), NativeLinear([down])))
    return NativeMoE(router=NativeLinear([pack_dense(router)]), experts=experts, top_k=2, renormalize=renormalize)


def test_one_token_has_no_stride() -> None:
    layer, column = made(torch.randn(EXPERTS, HIDDEN)), torch.randn(HIDDEN, 1)
    assert column.T.stride() == (1, 1)
    assert torch.equal(layer(column.T), layer(column.reshape(1, HIDDEN)))


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("row", range(EXPERTS))
def test_a_router_that_is_no_number_is_seen(row: int, renormalize: bool) -> None:
    router = torch.randn(EXPERTS, HIDDEN)
    router[row, 3] = float("nan")
    assert made(router, renormalize=renormalize)(torch.randn(3, HIDDEN)).isnan().all(), "as the softmax of its scores"
