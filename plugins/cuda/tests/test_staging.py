"""Staged copies: every byte arrives, buffers alternate, and none is overwritten before its copy is done."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tenon_cuda.staging import StagedCopies

pytestmark = pytest.mark.unit


class FakeEvent:
    """Knows whether it was waited for since it was recorded."""

    pending = False

    def record(self) -> None:
        assert not self.pending, "a buffer was used again before its copy was done"
        self.pending = True

    def synchronize(self) -> None:
        self.pending = False


def staged(num_bytes: int) -> tuple[StagedCopies, list[Any]]:
    made: list[Any] = []

    def host_buffer(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        made.append(shape)
        return torch.empty(shape, dtype=dtype)

    return StagedCopies(host_buffer, num_bytes=num_bytes, new_event=FakeEvent), made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("count", [1, 63, 64, 1000])
def test_every_byte_arrives(dtype: torch.dtype, count: int) -> None:
    copies, made = staged(256)
    source = torch.arange(count).to(dtype).view(1, count)
    target = torch.zeros_like(source)
    for _ in range(2):
        assert copies.copy(target.zero_(), source)
        assert torch.equal(target, source)
    assert made == [(256,), (256,)]


def test_what_is_not_laid_out_alike_is_left_to_torch() -> None:
    copies, made = staged(256)
    matrix = torch.randn(4, 6)
    assert not copies.copy(torch.empty(6, 4), matrix.t())
    assert not copies.copy(torch.empty(4, 6, dtype=torch.bfloat16), matrix)
    assert not made
