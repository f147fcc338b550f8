"""Prompts through libraries: stand-ins of the libraries' signatures compute what they are handed, against float64.

A stand-in takes the arguments of the real function by name and place, checks what the real one checks, and reads the
cache only through them: a wrong stride, length or block number is a wrong result or a NaN.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("triton")

from importlib.metadata import PackageNotFoundError

import torch
from attention_cases import SMALL, attend, fill, make_batch, make_case, spec_of, truth
from torch import Tensor

from tenon_cuda.capabilities import Arch
from tenon_cuda.ops import flash_attention, flashinfer, installed
from tenon_cuda.ops.flash_attention import EDITIONS, FlashAttentionPrompts
from tenon_cuda.ops.flashinfer import FlashInferPrompts
from tenon_platforms.batch import GQAInputs
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import PluginError
from tenon_platforms.ops.attention import AttentionSpec
from tenon_triton.attention import TritonAttention
from tenon_triton.attention.long_prompts import LongPrompts
from tenon_triton.facts import DeviceFacts

pytestmark = pytest.mark.unit
HOPPER = Arch(9, 0)
FACTS = DeviceFacts(compute_units=4, shared_bytes=100_000)
PROMPTS = [(20, 51), (33, 33), (17, 70)]
MIXED = [(1, 40), (1, 3), *PROMPTS]
FIELDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"sliding_window": 19},
    "soft cap": {"soft_cap": 2.0},
    "both": {"sliding_window": 1, "soft_cap": 5.0},
}


def half(**fields: Any) -> AttentionSpec:
    return spec_of(4, 2, 64, **{"dtype": DType.FLOAT16, "kv_dtype": DType.FLOAT16, **fields})


def attention(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, causal: bool, left: int | None, cap: float | None
) -> Tensor:
    """One row: query [tokens, heads, dim]; keys, values [length, kv heads, dim]; left: tokens seen before one's own."""
    group = query.shape[1] // keys.shape[1]
    k, v = (part.double().repeat_interleave(group, dim=1) for part in (keys, values))
    scores = torch.einsum("qhd,lhd->hql", query.double(), k) * scale
    if cap:
        scores = torch.tanh(scores / cap) * cap
    place, at = torch.arange(len(keys)), torch.arange(len(keys) - len(query), len(keys))[:, None]
    visible = place <= at if causal else torch.ones(len(query), len(keys), dtype=torch.bool)
    if left is not None and left >= 0:
        visible = visible & (place >= at - left)
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("hql,lhd->qhd", weights, v).to(query.dtype)


class BatchPrefillWithPagedKVCacheWrapper:
    """FlashInfer 0.6.13's, prefill.py."""

    made: list[dict[str, Any]] = []

    def __init__(
        self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False,
        qo_indptr_buf: Any = None, paged_kv_indptr_buf: Any = None, paged_kv_indices_buf: Any = None,
        paged_kv_last_page_len_buf: Any = None, custom_mask_buf: Any = None, mask_indptr_buf: Any = None,
        backend: str = "auto", jit_args: Any = None, jit_kwargs: Any = None,
    ) -> None:  # fmt: skip
        assert kv_layout == "HND" and backend in ("fa2", "fa3") and float_workspace_buffer.dtype == torch.uint8
        self.made.append({"backend": backend, "bytes": float_workspace_buffer.nbytes})
        self.planned: dict[str, Any] = {}

    def plan(
        self, qo_indptr: Tensor, paged_kv_indptr: Tensor, paged_kv_indices: Tensor, paged_kv_last_page_len: Tensor,
        num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, page_size: int, head_dim_vo: Any = None,
        custom_mask: Any = None, packed_custom_mask: Any = None, causal: bool = False, pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False, sm_scale: float | None = None, window_left: int = -1,
        logits_soft_cap: float | None = None, rope_scale: Any = None, rope_theta: Any = None,
        q_data_type: Any = "float16", kv_data_type: Any = None, o_data_type: Any = None, non_blocking: bool = True,
    ) -> None:  # fmt: skip
        for part in (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len):
            assert part.dtype == torch.int32 and part.is_contiguous()
        assert len(qo_indptr) == len(paged_kv_indptr) == len(paged_kv_last_page_len) + 1
        assert int(paged_kv_indptr[-1]) == len(paged_kv_indices)
        assert bool((paged_kv_last_page_len >= 1).all()) and bool((paged_kv_last_page_len <= page_size).all())
        self.planned = dict(locals())

    def run(
        self, q: Tensor, paged_kv_cache: Tensor, *args: Any, q_scale: Any = None, k_scale: Any = None,
        v_scale: Any = None, out: Tensor | None = None, lse: Any = None, return_lse: bool = False,
        enable_pdl: bool | None = None, window_left: int | None = None, sinks: Any = None,
    ) -> Tensor:  # fmt: skip
        said = self.planned
        starts, pages = said["qo_indptr"].tolist(), said["paged_kv_indptr"].tolist()
        assert len(q) == starts[-1] and q.dtype == said["q_data_type"] and paged_kv_cache.dtype == said["kv_data_type"]
        assert out is not None and out.shape == q.shape and out.dtype == q.dtype and out.is_contiguous()
        shape = (2, said["num_kv_heads"], said["page_size"], said["head_dim_qk"])
        assert paged_kv_cache.shape[1:] == shape and enable_pdl is False
        for row, last in enumerate(said["paged_kv_last_page_len"].tolist()):
            blocks = said["paged_kv_indices"][pages[row] : pages[row + 1]].long()
            held = paged_kv_cache[blocks].transpose(2, 3).transpose(1, 0).flatten(1, 2)  # [2, tokens, kv heads, dim]
            keys, values = held[:, : (len(blocks) - 1) * said["page_size"] + last]
            tokens = slice(starts[row], starts[row + 1])
            out[tokens] = attention(
                q[tokens], keys, values, said["sm_scale"], said["causal"], said["window_left"], said["logits_soft_cap"]
            )
        return out


def paged(
    query: Tensor, keys: Tensor, values: Tensor, starts: Tensor, lengths: Tensor, table: Tensor, longest: int,
    scale: float, causal: bool, window: Sequence[int | None], cap: float,
) -> Tensor:  # fmt: skip
    """What the editions have in common. keys, values: [blocks, block_size, kv heads, dim]."""
    for part in (starts, lengths, table):
        assert part.dtype == torch.int32 and part.stride(-1) == 1
    assert len(starts) == len(lengths) + 1 == len(table) + 1
    assert keys.stride(-1) == values.stride(-1) == query.stride(-1) == 1
    assert longest == int((starts[1:] - starts[:-1]).max()) and starts[0] == 0 and starts[-1] == len(query)
    assert window[1] in (0, None) or tuple(window) == (-1, -1)
    outputs = []
    for row, length in enumerate(lengths.tolist()):
        blocks = table[row, : -(-length // keys.shape[1])].long()
        k, v = (part[blocks].flatten(0, 1)[:length] for part in (keys, values))
        outputs.append(attention(query[starts[row] : starts[row + 1]], k, v, scale, causal, window[0], cap))
    return torch.cat(outputs)


def second(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: Any = None, causal: bool = False, window_size: Any = (-1, -1),
    softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False, return_attn_probs: bool = False,
    block_table: Any = None,
) -> Tensor:  # fmt: skip
    """flash_attn 2.8's `flash_attn_varlen_func`."""
    assert k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
    lengths = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
    assert cu_seqlens_k.dtype == torch.int32 and int(lengths.max()) <= max_seqlen_k
    given = (cu_seqlens_q, lengths, block_table, max_seqlen_q, softmax_scale, causal, window_size, softcap)
    return paged(q, k, v, *given)


def third(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Any = None, v: Any = None, qv: Any = None, rotary_cos: Any = None,
    rotary_sin: Any = None, cache_seqlens: Any = None, cache_batch_idx: Any = None, cache_leftpad: Any = None,
    page_table: Any = None, cu_seqlens_q: Any = None, cu_seqlens_k_new: Any = None, max_seqlen_q: Any = None,
    rotary_seqlens: Any = None, q_descale: Any = None, k_descale: Any = None, v_descale: Any = None,
    softmax_scale: Any = None, causal: bool = False, window_size: Any = (-1, -1), attention_chunk: int = 0,
    softcap: float = 0.0, rotary_interleaved: bool = True, scheduler_metadata: Any = None, num_splits: int = 0,
    pack_gqa: Any = None, sm_margin: int = 0, return_softmax_lse: bool = False,
) -> Tensor:  # fmt: skip
    """`flash_attn_with_kvcache` of hopper/flash_attn_interface.py."""
    given = (cu_seqlens_q, cache_seqlens, page_table, max_seqlen_q, softmax_scale, causal, window_size, softcap)
    return paged(q, k_cache, v_cache, *given)


def fourth(
    q: Tensor, k: Tensor, v: Tensor, qv: Any = None, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None,
    max_seqlen_q: Any = None, max_seqlen_k: Any = None, min_seqlen_k: Any = None, seqused_q: Any = None,
    seqused_k: Any = None, gather_kv_indices: Any = None, page_table: Any = None, softmax_scale: Any = None,
    causal: bool = False, window_size: Any = (None, None), learnable_sink: Any = None, softcap: float = 0.0,
    num_splits: int = 1, pack_gqa: Any = None, deterministic: bool = False,
) -> tuple[Tensor, None]:  # fmt: skip
    """`flash_attn_varlen_func` of flash_attn/cute/interface.py, 4.0.0b36."""
    given = (cu_seqlens_q, seqused_k, page_table, max_seqlen_q, softmax_scale, causal, window_size, softcap)
    return paged(q, k, v, *given), None


FUNCTIONS: dict[str, Callable[..., Any]] = {"flash_attn_3": third, "flash-attn-4": fourth, "flash-attn": second}


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("flashinfer")
    module.BatchPrefillWithPagedKVCacheWrapper = BatchPrefillWithPagedKVCacheWrapper  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr(BatchPrefillWithPagedKVCacheWrapper, "made", [])
    monkeypatch.setattr(installed, "find_spec", lambda name: name)
    for edition in EDITIONS:
        module = ModuleType(edition.library.module)
        setattr(module, edition.function, FUNCTIONS[edition.library.distribution])
        monkeypatch.setitem(sys.modules, edition.library.module, module)


def backend_of(spec: AttentionSpec, prompts: LongPrompts) -> TritonAttention:
    return TritonAttention(spec, Device(), FACTS, configs=SMALL, long_prompts=prompts)


def flashinfer_prompts(spec: AttentionSpec, arch: Arch = HOPPER) -> FlashInferPrompts:
    return FlashInferPrompts(spec=spec, device=Device(), arch=arch, compute_units=4)


def check(spec: AttentionSpec, prompts: LongPrompts, block_size: int = 16, rows: Any = PROMPTS, **padding: Any) -> None:
    case = make_case(spec, rows, block_size)
    found = attend(case, backend_of(spec, prompts), torch.float16, **padding)
    assert found.isfinite().all(), "padding must be finite"
    wanted = truth(case, torch.float16, torch.float16)
    torch.testing.assert_close(found[: len(wanted)].double(), wanted, atol=3e-3, rtol=3e-3)


@pytest.mark.parametrize("fields", FIELDS)
def test_flashinfer_is_told_rows_blocks_and_lengths(fields: str) -> None:
    check(half(**FIELDS[fields]), flashinfer_prompts(half(**FIELDS[fields])))


@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize("edition", EDITIONS[:2], ids=lambda edition: edition.library.distribution)
def test_flash_attention_is_told_rows_blocks_and_lengths(edition: flash_attention.Edition, fields: str) -> None:
    check(half(**FIELDS[fields]), FlashAttentionPrompts(spec=half(**FIELDS[fields]), edition=edition, device=Device()))


@pytest.mark.parametrize("fields", ["plain", "both"])
def test_the_second_edition_has_large_blocks(fields: str) -> None:
    spec = half(**FIELDS[fields])
    prompts = FlashAttentionPrompts(spec=spec, edition=EDITIONS[2], device=Device())
    assert not prompts.takes(spec, 64)
    for edition in EDITIONS[:2]:  # these read whole tiles of long blocks, what was never written too
        assert edition.takes(64) and edition.takes(16) and not edition.takes(128)
    check(spec, prompts, 256)


def test_bidirectional_and_padding_tokens() -> None:
    spec = half(causal=False)
    check(spec, flashinfer_prompts(spec), pad_tokens=3)
    check(spec, FlashAttentionPrompts(spec=spec, edition=EDITIONS[0], device=Device()), pad_tokens=3)


def test_decodes_before_them_stay_with_our_kernel() -> None:
    spec = half()
    check(spec, flashinfer_prompts(spec), rows=MIXED)
    check(spec, FlashAttentionPrompts(spec=spec, edition=EDITIONS[0], device=Device()), rows=MIXED)


def test_a_captured_step_keeps_our_kernel() -> None:
    """Its lengths may change with every replay: a plan from the host's would be stale."""
    spec = half()
    case = make_case(spec, PROMPTS, 16)
    for prompts in (flashinfer_prompts(spec), FlashAttentionPrompts(spec=spec, edition=EDITIONS[0], device=Device())):
        backend = backend_of(spec, prompts)
        assert backend.plan(make_batch(case, case.tables)).prompts is not None
        assert backend.plan(make_batch(case, case.tables, static=True)).prompts is None


def test_flashinfer_asks_for_exact_lengths_and_its_space() -> None:
    spec = half()
    hopper, ampere = flashinfer_prompts(spec), flashinfer_prompts(spec, Arch(8, 0))
    for prompts, kernels in ((hopper, "fa3"), (ampere, "fa2")):
        backend = backend_of(spec, prompts)
        assert backend.needs_exact_host_lengths
        plain = TritonAttention(spec, Device(), FACTS, configs=SMALL)
        assert not plain.needs_exact_host_lengths
        assert backend.workspace_bytes - plain.workspace_bytes == prompts.workspace_bytes
        case = make_case(spec, [(1, 9)], 16)
        backend.plan(make_batch(case, case.tables, static=True))  # any plan: a decode is the first that is captured
        made = BatchPrefillWithPagedKVCacheWrapper.made
        partials = prompts.workspace_bytes - flashinfer.READY * flashinfer.PLAN_BYTES
        assert made == [{"backend": kernels, "bytes": partials}] * flashinfer.READY
        made.clear()
    # PrefillPlan of its scheduler.cuh: heads * (2 units / kv heads) * 128 rows of values and a logarithm, float32
    found = flashinfer.partials_bytes(spec, Arch(8, 0), 4)
    assert found - flashinfer.LEAST_WORKSPACE == 4 * (2 * 4 // 2) * 128 * (64 + 1) * 4


def test_plans_that_live_at_once_do_not_share_a_wrapper() -> None:
    """Groups of layers are planned before the first of them runs, and a next step before the last one ends."""
    spec = half()
    backend = backend_of(spec, flashinfer_prompts(spec))
    planned = []
    for more in range(4):
        case = make_case(spec, [(20 + more, 51 + more), (33, 33)], 16)
        cache, tables = fill(case, backend, torch.float16)
        planned.append((case, cache, backend.plan(make_batch(case, tables))))
    for case, cache, plan in planned:
        found = backend.run(GQAInputs(query=case.query.half(), cache=cache), plan)
        wanted = truth(case, torch.float16, torch.float16)
        torch.testing.assert_close(found.double(), wanted, atol=3e-3, rtol=3e-3)
    BatchPrefillWithPagedKVCacheWrapper.made.clear()
    del planned, plan
    backend.plan(make_batch(case, tables))
    assert not BatchPrefillWithPagedKVCacheWrapper.made, "wrappers of plans that are over are used again"


def test_a_plan_waits_for_the_copy_of_the_one_whose_memory_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []

    class Event:
        def __init__(self, number: int) -> None:
            self.number = number

        def wait(self) -> None:
            waited.append(self.number)

    events = iter(range(100))
    monkeypatch.setattr(Device, "event", lambda self: Event(next(events)))
    spec = half()
    backend = backend_of(spec, flashinfer_prompts(spec))
    case = make_case(spec, PROMPTS, 16)
    batch = make_batch(case, case.tables)
    for _ in range(3):
        backend.plan(batch)
    assert waited == [0, 1, 2]  # 0 and 1 are of warming, which plans once in every wrapper


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": DType.FLOAT32, "kv_dtype": DType.FLOAT32}, "not in float32"),
        ({"kv_dtype": DType.FLOAT8_E4M3}, "no KV cache in float8_e4m3"),
        ({"head_dim": 80}, "not of 80"),
        ({"sinks": True}, "sinks"),
        ({"tree_mask": True}, "tree mask"),
        ({"causal": False, "sliding_window": 5}, "later ones"),
    ],
)
def test_refusals_say_why(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], reason: str) -> None:
    monkeypatch.setattr(installed, "version", lambda name: {"flashinfer-python": "0.6.13"}.get(name, "3.0.0"))
    for module in (flashinfer, flash_attention):
        assert module.refused(half(), HOPPER) is None
        assert reason in str(module.refused(replace(half(), **change), HOPPER))
        assert "sm_70" in str(module.refused(half(), Arch(7, 0)))


def test_what_is_not_installed_or_too_new_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"flashinfer-python": "0.5.3", "flash-attn-4": "4.0.0b36", "flash-attn": "2.8.3.post2"}

    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(installed, "version", version)
    assert "0.5.3 is not one of >=0.6,<0.7" in str(flashinfer.refused(half(), HOPPER))
    del versions["flashinfer-python"]
    assert "pip install 'flashinfer-python>=0.6,<0.7'" in str(flashinfer.refused(half(), HOPPER))
    assert flash_attention.edition_for(HOPPER) is EDITIONS[1]
    assert flash_attention.edition_for(Arch(8, 6)) is EDITIONS[2]
    assert "no edition" in str(flash_attention.edition_for(Arch(7, 5)))
    del versions["flash-attn-4"], versions["flash-attn"]
    found = flash_attention.edition_for(Arch(10, 0))
    assert "flash-attn-4 is not installed" in str(found) and "flash-attn " not in str(found)
    versions["flash-attn-4"] = "5.0"
    assert "5.0 is not one of" in str(flash_attention.edition_for(Arch(10, 0)))


def test_a_library_that_does_not_load_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    spec = half()
    case = make_case(spec, PROMPTS, 16)
    for prompts in (flashinfer_prompts(spec), FlashAttentionPrompts(spec=spec, edition=EDITIONS[0], device=Device())):
        with pytest.raises(PluginError, match=r"(?s)does not load.*cuda\.attention=triton"):
            backend_of(spec, prompts).plan(make_batch(case, case.tables))


def test_the_stand_ins_have_the_libraries_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a library is installed: every argument that its stand-in names is the real one's, at the same place."""
    monkeypatch.delitem(sys.modules, "flashinfer")
    real = pytest.importorskip("flashinfer", exc_type=ImportError).BatchPrefillWithPagedKVCacheWrapper
    for name in ("__init__", "plan", "run"):
        theirs = list(inspect.signature(inspect.unwrap(getattr(real, name))).parameters)
        ours = list(inspect.signature(getattr(BatchPrefillWithPagedKVCacheWrapper, name)).parameters)
        assert theirs[: len(ours)] == ours, name
