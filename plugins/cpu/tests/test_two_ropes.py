"""Gemma 3's shape: sliding and full layers of one step rotate with ropes of their own, here as on the reference.

The layers share a step's memo and its positions; what one rope computed must never serve the other.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tenon_platforms.attention import AttentionBackend, AttentionKernel
from tenon_platforms.batch import GQAInputs
from tenon_platforms.builtin.reference.platform import ReferencePlatform
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.norm import RMSNormSpec
from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec, RopeScaling, RopeSpec
from tenon_platforms.ops.rope_reference import rope_table
from tenon_platforms.ops.table import OpTable

pytestmark = pytest.mark.unit
HEADS, KV_HEADS, DIM, BLOCK, WINDOW = 4, 2, 32, 16, 8
FULL = RopeSpec(
    head_dim=DIM, rotary_dim=DIM, base=1e6, max_positions=64, scaling=RopeScaling(kind="linear", factor=8.0)
)
SLIDING = RopeSpec(head_dim=DIM, rotary_dim=DIM, base=1e4, max_positions=64)
LAYERS = (SLIDING, SLIDING, FULL, SLIDING, FULL)
NORM = RMSNormSpec(hidden=DIM, eps=1e-6, dtype=DType.FLOAT32, weight_offset=1.0)


class Attentions:
    """The attention of every layer on one platform, with caches, as a model holds them."""

    def __init__(self, table: OpTable, device: Any, angles: dict[RopeSpec, Tensor]) -> None:
        self.angles = angles
        self.backends: dict[RopeSpec, AttentionBackend] = {}
        self.writes = {}
        for rope in (SLIDING, FULL):
            kernel = table.choose(self._spec(rope), device)
            assert isinstance(kernel, AttentionKernel)
            backend = self.backends[rope] = kernel.backend
            self.writes[rope] = table.choose(
                QKNormRopeKVWriteSpec(
                    num_heads=HEADS,
                    num_kv_heads=KV_HEADS,
                    head_dim=DIM,
                    dtype=DType.FLOAT32,
                    layout_id=backend.layout.id,
                    q_norm=NORM,
                    k_norm=NORM,
                    rope=rope,
                ),
                backend,
            )
        self.caches = [self.backends[rope].allocate(8, BLOCK, 1)[0] for rope in LAYERS]

    def _spec(self, rope: RopeSpec) -> AttentionSpec:
        return AttentionSpec(
            num_heads=HEADS,
            num_kv_heads=KV_HEADS,
            head_dim=DIM,
            scale=DIM**-0.5,
            dtype=DType.FLOAT32,
            kv_dtype=DType.FLOAT32,
            sliding_window=WINDOW if rope is SLIDING else 0,
        )

    def step(self, batch: Any, slots: Tensor, qkv: list[Tensor], weight: Tensor) -> list[Tensor]:
        """Every layer's output, [tokens, heads, dim]."""
        plans = {rope: backend.plan(batch) for rope, backend in self.backends.items()}
        found = []
        for rope, cache, one in zip(LAYERS, self.caches, qkv, strict=True):
            query = self.writes[rope].run(one, batch.positions, self.angles[rope], weight, weight, cache, slots)
            found.append(self.backends[rope].run(GQAInputs(query=query, cache=cache), plans[rope]).clone())
        return found


def slots_of(batch: Any, tables: list[list[int]]) -> Tensor:
    places = zip(batch.token_rows.tolist(), batch.positions[0].tolist(), strict=True)
    return torch.tensor([tables[row][at // BLOCK] * BLOCK + at % BLOCK for row, at in places], dtype=torch.int32)


def both(make_table: Any) -> tuple[Attentions, Attentions]:
    angles = {rope: rope_table(rope) for rope in (SLIDING, FULL)}
    reference = OpTable(platform="reference")
    platform = ReferencePlatform()
    platform.register_ops(reference, platform.device())
    table = make_table()
    ours = Attentions(table, torch.device("cpu"), angles)
    writes = [choice for choice in table.choices if isinstance(choice.spec, QKNormRopeKVWriteSpec)]
    assert [choice.source for choice in writes] == ["cpu", "cpu"], "the platform's own rotation does not serve"
    return ours, Attentions(reference, platform.device(), angles)


def test_two_ropes_in_one_model(make_table: Any, make_batch: Any) -> None:
    ours, reference = both(make_table)
    generator = torch.Generator().manual_seed(3)
    tables = [[1, 2, 3], [4, 5]]
    steps = [((30, 12), (30, 12)), ((1, 9), (31, 21)), ((1, 1), (32, 22)), ((1, 1), (33, 23))]
    weight = torch.randn(DIM, generator=generator) * 0.2
    for queries, lengths in steps:
        batch = make_batch(queries, lengths, tables, BLOCK)
        width = (HEADS + 2 * KV_HEADS) * DIM
        qkv = [torch.randn(sum(queries), width, generator=generator) for _ in LAYERS]
        slots = slots_of(batch, tables)
        found = ours.step(batch, slots, qkv, weight)
        wanted = reference.step(batch, slots, qkv, weight)
        for layer, (one, other) in enumerate(zip(found, wanted, strict=True)):
            torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4, msg=lambda text, at=layer: f"{at}: {text}")


def test_a_rope_taken_for_the_other_shows(make_table: Any, make_batch: Any) -> None:
    """The comparison above can fail: with one rope for all layers it does."""
    ours, reference = both(make_table)
    ours.angles = dict.fromkeys(ours.angles, ours.angles[SLIDING])
    batch, tables = make_batch([30], [30], [[1, 2]], BLOCK), [[1, 2]]
    qkv = [torch.randn(30, (HEADS + 2 * KV_HEADS) * DIM) for _ in LAYERS]
    weight, slots = torch.zeros(DIM), slots_of(batch, tables)
    found, wanted = ours.step(batch, slots, qkv, weight), reference.step(batch, slots, qkv, weight)
    differs = [not torch.allclose(one, other, atol=1e-3) for one, other in zip(found, wanted, strict=True)]
    assert differs == [rope is FULL for rope in LAYERS]
