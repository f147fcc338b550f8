"""The manifest, selection on faked hardware, options, adjustments, and what is said where no driver answers."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import tenon_cuda
from tenon_cuda.capabilities import Arch, adjustments, capabilities
from tenon_cuda.options import CUDAOptions
from tenon_cuda.platform import CUDAPlatform
from tenon_platforms.device import LoadPolicy
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError, DeviceError
from tenon_platforms.execution import ExecutableKind
from tenon_platforms.hardware import Presence, known_hardware, probe
from tenon_platforms.manifest import Manifest, parse_manifest
from tenon_platforms.options import parse_platform_options
from tenon_platforms.signs import Machine
from tenon_platforms.toml_table import load_toml

pytestmark = pytest.mark.unit
FOLDER = Path(tenon_cuda.__file__).parent
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")


@pytest.fixture
def manifest() -> Manifest:
    file = FOLDER / "platform.toml"
    return parse_manifest(load_toml(file), name="cuda", distribution="tenon-cuda", version="0", path=file)


def presence(manifest: Manifest, root: Path, **environ: str) -> Any:
    assert manifest.hardware is not None
    return probe(manifest.hardware, Machine(root, environ), device_kind="nvidia", title="GPU").presence


def test_the_manifest_is_the_platforms(manifest: Manifest) -> None:
    assert manifest.accepts_contract()
    assert not (manifest.fallback or manifest.hidden)
    assert manifest.entry == f"{CUDAPlatform.__module__}:{CUDAPlatform.__name__}"
    assert (manifest.name, manifest.contract) == (CUDAPlatform.name, CUDAPlatform.contract)
    defaults = {spec.key: spec.default for spec in manifest.options}
    assert CUDAOptions.read(defaults) == CUDAOptions()
    assert set(defaults) == set(CUDAOptions.__dataclass_fields__)


def test_the_signs_are_those_that_force_the_platform(manifest: Manifest) -> None:
    (row,) = [row for row in known_hardware() if row.platform == "cuda"]
    assert manifest.hardware == row.signs


def test_hardware_is_seen_by_its_signs(manifest: Manifest, machine: Any) -> None:
    assert presence(manifest, machine.root) is Presence.ABSENT
    machine.gpu(nodes=False)
    assert presence(manifest, machine.root) is Presence.INACCESSIBLE
    machine.gpu()
    assert presence(manifest, machine.root) is Presence.USABLE
    assert presence(manifest, machine.root, CUDA_VISIBLE_DEVICES="") is Presence.HIDDEN
    assert presence(manifest, machine.root, CUDA_VISIBLE_DEVICES="-1") is Presence.HIDDEN
    assert presence(manifest, machine.root, CUDA_VISIBLE_DEVICES="1") is Presence.USABLE


def test_a_card_older_than_the_kernels_forces_nothing(manifest: Manifest, machine: Any) -> None:
    machine.gpu(device=0x1B06, nodes=False)  # Pascal
    assert presence(manifest, machine.root) is Presence.ABSENT


def test_importing_creates_no_context_and_costs_little() -> None:
    code = (
        "import sys, tenon_cuda, tenon_cuda.options; assert 'torch' not in sys.modules;"
        "import torch, time; start = time.perf_counter(); from tenon_cuda.platform import CUDAPlatform;"
        "CUDAPlatform().probe(); assert not torch.cuda.is_initialized(); assert 'triton' not in sys.modules;"
        "print(time.perf_counter() - start)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True
    )
    assert float(done.stdout) < 10  # a second, and ten times the slack of a shared machine


def test_options_are_typed(manifest: Manifest) -> None:
    values, _ = parse_platform_options(["cuda.graphs=off", "cuda.quantize=fp8"], manifest)
    assert CUDAPlatform(values).settings == CUDAOptions(graphs=False, quantize="fp8")
    with pytest.raises(ConfigError, match=r"cuda\.quantize"):
        parse_platform_options(["cuda.quantize=int3"], manifest)
    with pytest.raises(ConfigError, match="must be 0 or more"):
        CUDAPlatform({"step_tokens": -1})
    with pytest.raises(ConfigError, match="expected one of none, fp8"):
        CUDAPlatform({"quantize": "int3"})
    with pytest.raises(ConfigError, match="no option 'threads'"):
        CUDAPlatform({"threads": 1})


@no_gpu
def test_a_missing_driver_is_an_error_with_its_remedy() -> None:
    device = CUDAPlatform().device()
    assert device.torch_device == torch.device("cuda", 0)
    assert (device.is_async, device.load_policy) == (True, LoadPolicy.STAGING)
    with pytest.raises(DeviceError, match=r"cannot use the GPU(?s:.*)--platform cpu"):
        device.open()
    device.close()  # of what was never opened


def test_types_follow_the_architecture() -> None:
    volta, ampere, ada, hopper = Arch(7, 0), Arch(8, 0), Arch(8, 9), Arch(9, 0)
    assert capabilities(volta, quantize="none").dtypes == (DType.FLOAT16, DType.FLOAT32)
    assert capabilities(ampere, quantize="none").dtypes == (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)
    assert capabilities(hopper, quantize="fp8").executable is ExecutableKind.CAPTURE
    floats = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)
    assert capabilities(ampere, quantize="none").kv_dtypes == floats
    for arch in (ada, hopper):
        assert capabilities(arch, quantize="none").kv_dtypes == (*floats, DType.FLOAT8_E4M3)
    assert capabilities(ampere, quantize="none").scheme("fp8-channel") == "dequantize"
    assert capabilities(ada, quantize="none").scheme("fp8-channel") == "native"
    assert capabilities(hopper, quantize="none").scheme("gguf-q4_k") == "dequantize"
    assert capabilities(hopper, quantize="none").scheme("awq") is None
    assert capabilities(hopper, quantize="none").scheme("int4-group128") == "dequantize"
    assert capabilities(hopper, quantize="none").scheme("fp8-block") == "native"
    assert capabilities(hopper, quantize="none", kernels="torch").scheme("fp8-block") == "dequantize"
    with pytest.raises(ConfigError, match="sm_80"):
        capabilities(ampere, quantize="fp8")


def test_adjustments_are_what_the_options_say() -> None:
    requested = {"block_size": None, "enforce_eager": False}
    assert not list(adjustments(requested, CUDAOptions()))
    found = {item.field: item for item in adjustments(requested, CUDAOptions(graphs=False, kv_block_size=32))}
    assert {name: item.effective for name, item in found.items()} == {"block_size": 32, "enforce_eager": True}
    assert {item.severity for item in found.values()} == {"performance"}
    asked = {"block_size": 64, "enforce_eager": True}
    assert not list(adjustments(asked, CUDAOptions(graphs=False, kv_block_size=32)))


def test_the_probe_is_quick() -> None:
    start = time.perf_counter()
    CUDAPlatform().probe()
    assert time.perf_counter() - start < 5
