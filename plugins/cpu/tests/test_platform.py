"""The manifest, what the platform claims on different processors, its options and its device."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tenon_cpu
from tenon_cpu import native
from tenon_cpu.capabilities import adjustments, capabilities
from tenon_cpu.isa import CPU, read_cpu
from tenon_cpu.platform import DEFAULTS, CPUPlatform
from tenon_platforms.device import LoadPolicy
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError
from tenon_platforms.manifest import Manifest, parse_manifest
from tenon_platforms.ops.norm import RMSNormSpec
from tenon_platforms.ops.table import OpTable
from tenon_platforms.options import parse_platform_options
from tenon_platforms.toml_table import load_toml

pytestmark = pytest.mark.unit
FOLDER = Path(tenon_cpu.__file__).parent


def cpu_with(*flags: str) -> CPU:
    return CPU(name="Test CPU", machine="x86_64", flags=frozenset(flags), physical_cores=4)


@pytest.fixture
def manifest() -> Manifest:
    file = FOLDER / "platform.toml"
    return parse_manifest(load_toml(file), name="cpu", distribution="tenon-cpu", version="0", path=file)


def test_the_manifest_is_the_platforms(manifest: Manifest) -> None:
    assert manifest.accepts_contract()
    assert manifest.fallback
    assert manifest.entry == f"{CPUPlatform.__module__}:{CPUPlatform.__name__}"
    assert (manifest.name, manifest.contract) == (CPUPlatform.name, CPUPlatform.contract)
    assert {spec.key: spec.default for spec in manifest.options} == DEFAULTS


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, tenon_cpu, tenon_cpu.isa; assert 'torch' not in sys.modules"
    paths = ":".join(sys.path)
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": paths})


def test_options_are_typed(manifest: Manifest) -> None:
    values, _ = parse_platform_options(["cpu.threads=3", "cpu.gguf=inplace"], manifest)
    assert CPUPlatform(values).device().threads == 3  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"cpu\.gguf"):
        parse_platform_options(["cpu.gguf=magic"], manifest)
    with pytest.raises(ConfigError, match="threads=-1: it lies between 0 and 1024"):
        CPUPlatform({"threads": -1})
    with pytest.raises(ConfigError, match="threads=1000000: it lies between 0 and 1024"):
        CPUPlatform({"threads": 1_000_000})
    with pytest.raises(ConfigError, match="no device 1"):
        CPUPlatform().device(1)


def test_auto_is_float32_without_half_instructions() -> None:
    plain = cpu_with("avx2", "f16c")
    (entry,) = adjustments(plain, {"dtype": "auto", "kv_cache_dtype": "auto"}, is_native=False)
    assert (entry.field, entry.effective, entry.severity) == ("dtype", "float32", "performance")
    assert "no bfloat16" in entry.reason
    assert capabilities(plain, is_native=False, inplace=False).dtypes[0] == DType.FLOAT32
    assert not list(adjustments(plain, {"dtype": "float32", "kv_cache_dtype": "auto"}, is_native=False))


def test_bfloat16_is_kept_where_it_is_native() -> None:
    wide = cpu_with("avx2", "avx512_bf16", "amx_bf16")
    assert capabilities(wide, is_native=False, inplace=False).dtypes == (DType.BFLOAT16, DType.FLOAT32)
    (entry,) = adjustments(wide, {"dtype": "auto", "kv_cache_dtype": "auto"}, is_native=False)
    assert (entry.field, entry.effective) == ("kv_cache_dtype", "float32")


@pytest.mark.parametrize("dtype", ["bfloat16", "half"])
def test_an_asked_for_half_type_stays_and_its_cache_is_float32(dtype: str) -> None:
    (entry,) = adjustments(cpu_with("avx2"), {"dtype": dtype, "kv_cache_dtype": "auto"}, is_native=False)
    assert entry.field == "kv_cache_dtype"
    assert not list(adjustments(cpu_with("avx2"), {"dtype": dtype, "kv_cache_dtype": "bfloat16"}, is_native=False))


def test_schemes_say_how_they_are_served() -> None:
    resting = capabilities(cpu_with(), is_native=False, inplace=False)
    assert (resting.scheme("dense-bfloat16"), resting.scheme("gguf-q4_1")) == ("native", "dequantize")
    inplace = capabilities(cpu_with(), is_native=False, inplace=True)
    assert (inplace.scheme("gguf-q4_1"), inplace.scheme("gguf-q6_k")) == ("native", "dequantize")
    assert inplace.scheme("awq") is None
    blocks = capabilities(cpu_with(), is_native=True, inplace=True)
    assert {blocks.scheme(f"gguf-{name}") for name in ("q4_1", "q8_0", "q6_k")} == {"native"}


def test_native_attention_reads_half_caches() -> None:
    assert not list(adjustments(cpu_with("avx2"), {"dtype": "half", "kv_cache_dtype": "auto"}, is_native=True))


def test_which_kernels_run_is_the_operators_choice() -> None:
    assert not CPUPlatform({"kernels": "torch"}).is_native
    with pytest.raises(ConfigError, match=r"cpu\.isa=mmx"):
        CPUPlatform({"isa": "mmx"})


def test_without_the_library_the_log_says_so_once_and_torch_computes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "library", lambda: None)
    platform = CPUPlatform()
    table = OpTable(platform="cpu")
    with caplog.at_level("WARNING"):
        platform.register_ops(table, platform.device())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "install g++" in caplog.text
    assert table.choose(RMSNormSpec(hidden=8, eps=1e-5, dtype=DType.FLOAT32)).name != "native"
    with pytest.raises(ConfigError, match="there are none here"):
        CPUPlatform({"kernels": "native"})


CPUINFO = """processor\t: {0}
model name\t: Some CPU
physical id\t: 0
core id\t: {1}
flags\t: fpu avx2 fma

"""


def test_cores_are_physical_and_usable() -> None:
    text = "".join(CPUINFO.format(number, number // 2) for number in range(8))
    assert read_cpu(text, frozenset(range(8))).physical_cores == 4
    assert read_cpu(text, frozenset({0, 1, 6})).physical_cores == 2
    assert read_cpu(text, frozenset({1, 2, 6})).cores == (1, 2, 6)
    found = read_cpu(text, frozenset(range(8)))
    assert (found.name, found.arch, found.has_bf16) == ("Some CPU", "avx2", False)


def test_an_unknown_cpuinfo_assumes_nothing() -> None:
    found = read_cpu("", frozenset({0, 1, 2}))
    assert (found.physical_cores, found.flags) == (3, frozenset())


def test_threads_are_set_and_put_back() -> None:
    before = torch.get_num_threads()
    device = CPUPlatform({"threads": 1}).device()
    device.open()
    device.open()
    assert torch.get_num_threads() == 1
    device.close()
    assert torch.get_num_threads() == before
    assert device.load_policy == LoadPolicy.MMAP
    assert not device.sleep(("weights",))


def test_the_probe_names_the_processor() -> None:
    (info,) = CPUPlatform().probe()
    assert info.memory > 0
    assert info.name


FAULTS = """
import resource
import sys
import torch
from tenon_cpu.platform import CPUPlatform

CPUPlatform({"threads": 1}).device().open()

def layer():
    made = [torch.ones(24 * 2**20 // 4) for _ in range(3)]

for _ in range(8):  # until the heap has grown
    layer()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    layer()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has no such setting")
def test_what_a_layer_freed_is_the_next_ones_without_a_fault() -> None:
    found = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 1000, "of 92,160 pages of 4 KiB"


GIVEN_BACK = """
from pathlib import Path
import torch
from tenon_cpu.platform import CPUPlatform

def held() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if "RssAnon" in line)  # KiB

device = CPUPlatform().device()
device.open()
before = held()
loaded = [torch.ones(2**22) for _ in range(20)]
kept = torch.ones(2**20)  # above them, and in no gap: the heap cannot end before it
del loaded
freed = held() - before
device.memory()
print(freed, held() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has no such setting")
def test_what_loading_freed_is_given_back_before_the_cache_is_sized() -> None:
    found = subprocess.run([sys.executable, "-c", GIVEN_BACK], capture_output=True, text=True, check=True)
    freed, left = map(int, found.stdout.split())
    assert freed > 200 * 1024, "the heap keeps some of 320 MiB, or this shows nothing"
    assert left < 16 * 1024
