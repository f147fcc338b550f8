"""What the platform takes from tenon-triton: every op of a decode step, by name, so that the step can be captured."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from tenon_cuda.capabilities import Arch
from tenon_cuda.ops.offers import register as register_all
from tenon_cuda.ops.triton_offers import PRIORITY, register
from tenon_cuda.options import CUDAOptions
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.linear import Dense, LinearPart, MergedLinearSpec
from tenon_platforms.ops.moe import MoESpec
from tenon_platforms.ops.rows import PrepareInputsSpec, RowWritesSpec
from tenon_platforms.ops.sampling import SamplerSpec, TokenLogprobsSpec
from tenon_platforms.ops.spec import Spec
from tenon_platforms.ops.table import OpTable
from tenon_triton.facts import DeviceFacts

pytestmark = pytest.mark.unit
FACTS = DeviceFacts(compute_units=132, shared_bytes=227 << 10, fp8=True)
DENSE = Dense(stored=DType.BFLOAT16)
MOE = MoESpec(
    hidden=64, intermediate=32, num_experts=8, top_k=2, activation="silu", gate=DENSE, up=DENSE, down=DENSE,
    dtype=DType.BFLOAT16, renormalize=True,
)  # fmt: skip
PAGED = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=64, scale=0.1, dtype=DType.BFLOAT16,
                      kv_dtype=DType.BFLOAT16)  # fmt: skip


def offered(settings: CUDAOptions, **options: bool) -> OpTable:
    table = OpTable(platform="cuda", strict=True, **options)
    register(table, Device(), FACTS, settings)
    return table


def linear(name: str) -> MergedLinearSpec:
    part = LinearPart(name=name, out_features=64, scheme=DENSE)
    return MergedLinearSpec(in_features=64, parts=(part,), dtype=DType.BFLOAT16)


@pytest.mark.parametrize(
    "spec",
    [
        linear("q"),
        MOE,
        SamplerSpec(vocab_size=100),
        TokenLogprobsSpec(vocab_size=100),
        PrepareInputsSpec(block_sizes=(16,)),
        RowWritesSpec(num_groups=1),
    ],
    ids=lambda spec: spec.op,
)
def test_no_op_of_a_decode_step_is_left_to_the_reference(spec: Spec) -> None:
    table = offered(CUDAOptions())
    table.choose(spec)  # strict: a reference kernel raises
    assert table.choose(PAGED, Device()).name == "triton.paged"


def test_layers_are_quantized_and_the_head_is_not() -> None:
    table = offered(CUDAOptions(quantize="fp8"))
    assert table.choose(linear("q")).name == "FP8 rows and channels"
    assert table.choose(linear("head")).name == "by table"
    assert offered(CUDAOptions()).choose(linear("q")).name == "by table"


def test_rows_that_do_not_depend_on_the_batch_take_one_tile() -> None:
    table = offered(CUDAOptions(quantize="fp8"), batch_invariant=True)
    assert table.choose(linear("q")).name == "FP8 rows and channels, one tile"
    assert table.choose(linear("head")).name == "by table, one tile"


def test_torch_alone_when_the_operator_says_so() -> None:
    table = OpTable(platform="cuda")
    register_all(table, Device(), Arch(9, 0), CUDAOptions(kernels="torch"))
    assert table.choose(linear("q")).name == "cublas"
    assert PRIORITY > 1, "the library's kernels come before torch's"


def test_kernels_are_kept_where_the_operator_says(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("tenon_triton.kernel_cache.keep_in", asked.append)
    monkeypatch.setattr("tenon_cuda.ops.triton_offers.device_facts", lambda device, arch: FACTS)
    for kernels, folder in (("auto", ""), ("torch", "/ignored"), ("auto", "/kept")):
        table = OpTable(platform="cuda")
        register_all(table, Device(), Arch(8, 9), CUDAOptions.read({"kernels": kernels, "kernel_cache": folder}))
    assert asked == ["/kept"]
    monkeypatch.setattr("tenon_cuda.ops.offers.find_spec", lambda name: None)
    register_all(OpTable(platform="cuda"), Device(), Arch(8, 9), CUDAOptions(kernel_cache="/without-triton"))
    assert asked == ["/kept"]
    ignored, lacking, ignored_too = (record.message for record in caplog.records)
    assert ignored == "cuda.kernel_cache=/ignored is ignored: torch's kernels are not compiled"
    assert lacking.startswith("tenon-triton is not installed")
    assert ignored_too == "cuda.kernel_cache=/without-triton is ignored: torch's kernels are not compiled"
