"""What a platform gets for free: the host device, the default sockets, the KV layout's arithmetic."""

from __future__ import annotations

import os

import pytest
import torch

from tenon_platforms.capabilities import Capabilities
from tenon_platforms.collectives import Collectives
from tenon_platforms.device import Device, Fault
from tenon_platforms.dtypes import DType
from tenon_platforms.execution import EagerExecutable, EngineLimits, ExecutableKind
from tenon_platforms.kv_layout import KVLayout, LayoutKind
from tenon_platforms.platform import Platform
from tenon_platforms.shapes import DynamicShapes, ShapeKey
from tenon_platforms.torch_dtypes import from_torch, to_torch

pytestmark = pytest.mark.unit
KEY = ShapeKey(tokens=1, rows=1, logits=1, max_query=1, blocks=1)


def test_the_host_device_opens_closes_and_copies() -> None:
    device = Device()
    for _ in range(2):
        device.open()
        device.close()
    source, target = device.host_buffer((3, 2), torch.int32), device.zeros((3, 2), torch.int32)
    source.numpy()[:] = 7
    device.copy(target, source)
    event = device.event()
    event.wait()
    device.synchronize()
    assert event.is_done() and target.eq(7).all() and target.device == device.torch_device
    assert device.empty((2,), torch.float16).dtype == torch.float16
    with device.stream("copies"), device.profiler_range("x"), device.inference_context():
        assert torch.is_inference_mode_enabled()
    assert not device.sleep(("kv",)) and not device.is_async


def test_memory_is_plausible_and_within_the_container() -> None:
    memory = Device().memory()
    assert 0 < memory.free <= memory.total
    assert memory.total <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory.peak > 1 << 20


def test_seeding_repeats() -> None:
    device = Device()
    device.seed(3)
    first = torch.rand(4)
    device.seed(3)
    assert torch.equal(first, torch.rand(4))


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (MemoryError(), Fault.OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"), Fault.OUT_OF_MEMORY),
        (ValueError("odd"), Fault.REQUEST),
    ],
)
def test_faults_are_classified(error: Exception, fault: Fault) -> None:
    assert Device().classify_fault(error) is fault


def test_telemetry_is_numbers_by_name() -> None:
    assert all(isinstance(value, float) for value in Device().telemetry().values())


def test_an_empty_platform_has_every_socket() -> None:
    platform = Platform()
    device = platform.device(0)
    capabilities, execution = platform.capabilities(device), platform.execution(device)
    assert isinstance(capabilities, Capabilities) and capabilities.executable is ExecutableKind.EAGER
    policy = execution.shape_policy(None, EngineLimits(max_rows=5, max_model_len=64, max_tokens=32), capabilities)  # type: ignore[arg-type]
    assert isinstance(policy, DynamicShapes) and (policy.limits.max_rows, policy.limits.max_tokens) == (5, 32)
    default = execution.shape_policy(None, EngineLimits(max_rows=5, max_model_len=64), capabilities)  # type: ignore[arg-type]
    assert default.limits.max_tokens >= 512
    group = platform.collectives(device, rank=0, size=1, address="")
    assert type(group) is Collectives and group.agree("plan")
    assert len(platform.probe()) == 1 and tuple(platform.adjustments({}, None)) == ()  # type: ignore[arg-type]


def test_an_eager_executable_calls_its_function() -> None:
    calls: list[int] = []
    executable = EagerExecutable(lambda inputs: calls.append(inputs) or inputs + 1)
    executable.prepare(KEY, 1)
    assert executable.run(KEY, 5) == 6 and calls == [1, 5]
    assert executable.num_compiles == 0 and executable.kind is ExecutableKind.EAGER
    executable.release()


def test_capabilities_match_schemes_by_prefix() -> None:
    claimed = Capabilities(schemes={"dense-float32": "native", "gguf-*": "dequantize"})
    assert claimed.scheme("dense-float32") == "native" and claimed.scheme("gguf-q4_k") == "dequantize"
    assert claimed.scheme("dense-bfloat16") is None and claimed.scheme("fp8-block") is None


@pytest.mark.parametrize("dtype", DType)
def test_dtypes_go_to_torch_and_back(dtype: DType) -> None:
    assert from_torch(to_torch(dtype)) is dtype
    assert to_torch(dtype).itemsize == dtype.num_bytes and to_torch(dtype).is_floating_point == dtype.is_floating


@pytest.mark.parametrize(("scales", "expected"), [(0, 2 * 2 * 80 * 2 * 16), (4, 2 * 2 * 80 * 2 * 16 + 64)])
def test_block_bytes_count_padding_and_scales(scales: int, expected: int) -> None:
    layout = KVLayout(
        kind=LayoutKind.PAGED,
        id="x",
        dims=(),
        dtype=DType.BFLOAT16,
        num_kv_heads=2,
        head_dim=72,
        kernel_block_size=16,
        preferred_block_size=16,
        padded_head_dim=80,
        scale_bytes_per_token=scales,
    )
    assert layout.block_bytes(16) == expected
    assert layout.block_bytes(1) % layout.alignment == 0


def test_a_group_of_one_is_the_identity() -> None:
    group, tensor = Collectives(), torch.arange(6.0).view(3, 2)
    assert group.all_reduce(tensor) is tensor and group.all_gather(tensor) is tensor
    assert group.reduce_scatter(tensor) is tensor and group.broadcast(tensor) is tensor
    assert group.all_to_all(tensor, [3], [3]) is tensor
    group.barrier()
    group.close()
    with pytest.raises(ValueError, match="rank 1 does not exist"):
        group.send(tensor, 1)
