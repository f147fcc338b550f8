"""What happens to a merged q, k, v output before attention, in one launch: norm per head, rotation, KV write.

A program takes some heads of one token. Rows of its tile are heads: those of q go to the output, those of k and v
straight into the paged cache (`attention/kv_cache.py`: [blocks, 2, kv heads, block_size, head_dim]). Halves are rotated
against each other; dims past the rotary ones pass. Every step is rounded to the spec's type, as the reference does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenon_platforms.kernel import Kernel, KernelFlags, No
from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec

from .. import early
from ..attention.kv_cache import LAYOUT_ID, greatest, saturated
from ..early import trigger, wait

HEADS = 8  # of one program: enough bytes for one warp a head row


@triton.jit
def _inverse(squares, dim, q_eps, k_eps, is_q):
    return tl.rsqrt(squares / dim + tl.where(is_q, q_eps, k_eps))


@triton.jit
def _normed(
    x,
    inverse,
    columns,
    inside,
    is_q,
    normed,
    q_weight,
    k_weight,
    DTYPE: tl.constexpr,
    Q_OFFSET: tl.constexpr,
    K_OFFSET: tl.constexpr,
):
    """x * inverse * weight of the rows that are normed, float32 rounded to DTYPE; the others as they are."""
    plain = (x * inverse[:, None]).to(DTYPE).to(tl.float32)
    found = x
    if q_weight is not None:
        gain = tl.load(q_weight + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
        if Q_OFFSET != 0.0:
            wide = (x * inverse[:, None] * (gain + Q_OFFSET)).to(DTYPE).to(tl.float32)
        else:
            wide = (plain * gain).to(DTYPE).to(tl.float32)
        found = tl.where(is_q[:, None], wide, found)
    if k_weight is not None:
        gain = tl.load(k_weight + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
        if K_OFFSET != 0.0:
            wide = (x * inverse[:, None] * (gain + K_OFFSET)).to(DTYPE).to(tl.float32)
        else:
            wide = (plain * gain).to(DTYPE).to(tl.float32)
        found = tl.where((normed & ~is_q)[:, None], wide, found)
    return found


@triton.jit
def _put(
    found,
    head,
    columns,
    inside,
    is_q,
    held,
    query,
    q_row,
    cache,
    target,
    v_shift,
    is_v,
    GREATEST: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """A tile's rows to the query or the cache."""
    there = inside[None, :]
    tl.store(
        query + (q_row + head * HEAD_DIM)[:, None] + columns[None, :],
        found.to(query.dtype.element_ty),
        mask=there & is_q[:, None],
    )
    place = target + tl.where(is_v, v_shift, 0)
    tl.store(
        cache + place[:, None] + columns[None, :],
        saturated(found, GREATEST).to(cache.dtype.element_ty),
        mask=there & (held & ~is_q)[:, None],
    )


@triton.jit(do_not_specialize=["slots"])  # of a second group they begin anywhere
def _rope_kv(
    qkv,
    positions,
    cos_sin,
    q_weight,
    k_weight,
    query,
    cache,
    slots,
    qkv_stride,
    block_stride,
    q_eps,
    k_eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY: tl.constexpr,
    PAGE: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    Q_OFFSET: tl.constexpr,
    K_OFFSET: tl.constexpr,
    GREATEST: tl.constexpr,
    HEADS: tl.constexpr,
    EARLY: tl.constexpr,
):
    trigger(EARLY)
    wait(EARLY)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    held = head < NUM_HEADS + 2 * NUM_KV_HEADS
    is_q, is_v = head < NUM_HEADS, head >= NUM_HEADS + NUM_KV_HEADS
    dtype = qkv.dtype.element_ty
    source = qkv + token * qkv_stride + head * HEAD_DIM
    slot = tl.load(slots + token)
    kv_head = tl.where(is_v, head - NUM_HEADS - NUM_KV_HEADS, head - NUM_HEADS)
    target = (slot // PAGE).to(tl.int64) * block_stride + (kv_head * PAGE + slot % PAGE) * HEAD_DIM
    v_shift = NUM_KV_HEADS * PAGE * HEAD_DIM
    q_row = token * (NUM_HEADS * HEAD_DIM)
    half, rest = ROTARY // 2, HEAD_DIM - ROTARY
    squares = tl.zeros([HEADS], tl.float32)
    if ROTARY > 0:
        pair = tl.arange(0, HALF)
        turning = pair < half
        mask = held[:, None] & turning[None, :]
        first = tl.load(source[:, None] + pair[None, :], mask=mask, other=0.0).to(tl.float32)
        second = tl.load(source[:, None] + half + pair[None, :], mask=mask, other=0.0).to(tl.float32)
        squares += tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
    if REST > 0:
        beyond = tl.arange(0, REST)
        still = beyond < rest
        mask = held[:, None] & still[None, :]
        third = tl.load(source[:, None] + ROTARY + beyond[None, :], mask=mask, other=0.0).to(tl.float32)
        squares += tl.sum(third * third, axis=1)
    inverse = _inverse(squares, HEAD_DIM, q_eps, k_eps, is_q)
    if ROTARY > 0:
        first = _normed(
            first, inverse, pair, turning, is_q, held & ~is_v, q_weight, k_weight, dtype, Q_OFFSET, K_OFFSET
        )
        second = _normed(
            second, inverse, half + pair, turning, is_q, held & ~is_v, q_weight, k_weight, dtype, Q_OFFSET, K_OFFSET
        )
        line = cos_sin + tl.load(positions + token).to(tl.int64) * ROTARY
        cos = tl.load(line + pair, mask=turning, other=0.0).to(dtype).to(tl.float32)[None, :]
        sin = tl.load(line + half + pair, mask=turning, other=0.0).to(dtype).to(tl.float32)[None, :]
        near = (first * cos).to(dtype).to(tl.float32) - (second * sin).to(dtype).to(tl.float32)
        far = (second * cos).to(dtype).to(tl.float32) + (first * sin).to(dtype).to(tl.float32)
        near = tl.where(is_v[:, None], first, near.to(dtype).to(tl.float32))
        far = tl.where(is_v[:, None], second, far.to(dtype).to(tl.float32))
        _put(near, head, pair, turning, is_q, held, query, q_row, cache, target, v_shift, is_v, GREATEST, HEAD_DIM)
        _put(
            far, head, half + pair, turning, is_q, held, query, q_row, cache, target, v_shift, is_v, GREATEST, HEAD_DIM
        )
    if REST > 0:
        third = _normed(
            third, inverse, ROTARY + beyond, still, is_q, held & ~is_v, q_weight, k_weight, dtype, Q_OFFSET, K_OFFSET
        )
        _put(
            third,
            head,
            ROTARY + beyond,
            still,
            is_q,
            held,
            query,
            q_row,
            cache,
            target,
            v_shift,
            is_v,
            GREATEST,
            HEAD_DIM,
        )


def qk_norm_rope_kv_write(spec: QKNormRopeKVWriteSpec) -> Kernel | No:
    """run(qkv, positions, cos_sin, q_weight, k_weight, cache, slots) -> q, as the reference's."""
    if spec.layout_id != LAYOUT_ID:
        return No(f"writes the KV layout {LAYOUT_ID}, not {spec.layout_id}")
    rope = spec.rope
    if rope is not None and (rope.interleaved or rope.axis_sections):
        return No("rotates halves at positions of one axis")
    heads, kv_heads, dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
    rotary = 0 if rope is None else rope.rotary_dim
    width = (heads + 2 * kv_heads) * dim
    grid_heads = triton.cdiv(heads + 2 * kv_heads, HEADS)
    norms = (spec.q_norm, spec.k_norm)
    eps = [1.0 if norm is None else norm.eps for norm in norms]
    offsets = [0.0 if norm is None else norm.weight_offset for norm in norms]

    def run(
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        cache: Tensor,
        slots: Tensor,
    ) -> Tensor:
        tokens = qkv.shape[0]
        assert qkv.shape[1] == width and qkv.stride(1) == 1, f"qkv of {tuple(qkv.shape)}, expected [tokens, {width}]"
        query = torch.empty((tokens, heads, dim), dtype=qkv.dtype, device=qkv.device)
        if not tokens:
            return query
        _rope_kv[(tokens, grid_heads)](
            qkv,
            positions,
            cos_sin,
            None if spec.q_norm is None else q_weight,
            None if spec.k_norm is None else k_weight,
            query,
            cache,
            slots,
            qkv.stride(0),
            cache.stride(0),
            eps[0],
            eps[1],
            NUM_HEADS=heads,
            NUM_KV_HEADS=kv_heads,
            HEAD_DIM=dim,
            ROTARY=rotary,
            PAGE=cache.shape[3],
            HALF=triton.next_power_of_2(max(rotary // 2, 1)),
            REST=0 if rotary == dim else triton.next_power_of_2(dim - rotary),
            Q_OFFSET=offsets[0],
            K_OFFSET=offsets[1],
            GREATEST=greatest(cache.dtype),
            HEADS=HEADS,
            num_warps=4,
            **early.options(),
        )
        return query

    return Kernel(name="triton one launch", run=run, flags=KernelFlags(batch_invariant=True, in_place=("cache",)))
