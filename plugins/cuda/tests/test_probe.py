"""The probe and telemetry: NVML faked, the driver's files faked, and CUDA's rules of visibility."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from tenon_cuda.probe import probe, visible
from tenon_cuda.telemetry import Telemetry
from tenon_platforms.conformance_record import ConformanceRecord, driver_text, last_record, write_record
from tenon_platforms.device import DeviceInfo

pytestmark = pytest.mark.unit
INFORMATION = """Model: \t\t NVIDIA H200
IRQ:   \t\t 42
GPU UUID: \t GPU-{0}-4a1d
Bus Location: \t {1}
"""


class FakeNVML:
    """Two GPUs. `broken`: the driver does not answer."""

    class NVMLError(Exception):
        """As NVML raises."""

    NVML_TEMPERATURE_GPU = NVML_CLOCK_SM = NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = 0

    def __init__(self, *, broken: bool = False, driver: bytes | str = b"580.65.06") -> None:
        self.broken = broken
        self.driver = driver
        self.num_open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if self.broken:
            raise self.NVMLError("driver not loaded")
        self.num_open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.num_open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlSystemGetDriverVersion": lambda: self.driver,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetHandleByUUID": lambda uuid: 0,
            "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
            "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=f"00000000:{handle + 1:02X}:00.0".encode()),
            "nvmlDeviceGetName": lambda handle: b"NVIDIA H200",
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=141 << 30, used=7),
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=93),
            "nvmlDeviceGetPowerUsage": lambda handle: 650_000,
            "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
            "nvmlDeviceGetClockInfo": lambda handle, clock: 1980,
        }
        if name == "nvmlDeviceGetTotalEccErrors":
            raise self.NVMLError("not supported")
        return answers[name]


def test_nvml_tells_everything_and_is_closed_again(machine: Any) -> None:
    machine.file("sys/bus/pci/devices/0000:02:00.0/numa_node", "1\n")
    nvml = FakeNVML()
    found = probe(machine.root, {}, nvml)
    assert found[1] == DeviceInfo(
        id=1, name="NVIDIA H200", uuid="GPU-1", arch="sm_90", memory=141 << 30, numa_node=1, driver="NVIDIA 580.65.06"
    )
    assert found[0].numa_node is None
    assert nvml.num_open == 0


def test_the_drivers_files_serve_where_nvml_does_not(machine: Any) -> None:
    for index, address in enumerate(("0000:1b:00.0", "0000:43:00.0")):
        machine.file(f"proc/driver/nvidia/gpus/{address}/information", INFORMATION.format(index, address))
    machine.gpu("0000:43:00.0")
    found = probe(machine.root, {}, FakeNVML(broken=True))
    assert [info.uuid for info in found] == ["GPU-0-4a1d", "GPU-1-4a1d"]
    assert [info.numa_node for info in found] == [None, 1]
    assert probe(machine.root, {"CUDA_VISIBLE_DEVICES": "1"}, FakeNVML(broken=True))[0].uuid == "GPU-1-4a1d"


PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs@x)  Sun Jul 27\n"


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        (f"{PROPRIETARY}GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n", "NVIDIA 535.129.03"),
        (f"{OPEN}GCC version:\n", "NVIDIA 580.65.06"),
        ("GCC version:  gcc version 12.2.0 (Debian)\n", ""),
        (None, ""),
    ],
)
def test_the_driver_is_named_by_its_own_file(machine: Any, text: str | None, driver: str) -> None:
    machine.file("proc/driver/nvidia/gpus/0000:1b:00.0/information", INFORMATION.format(0, "0000:1b:00.0"))
    if text is not None:
        machine.file("proc/driver/nvidia/version", text)
    (found,) = probe(machine.root, {}, FakeNVML(broken=True))
    assert found.driver == driver


def test_nvml_is_asked_by_a_process_of_its_own(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of that name stands in for the library; asked here, it would count a caller."""
    (tmp_path / "pynvml.py").write_text(
        "import os, types\nclass NVMLError(Exception): ...\n"
        "def nvmlInit(): ...\ndef nvmlShutdown(): ...\ndef nvmlDeviceGetCount(): return 1\n"
        "def nvmlSystemGetDriverVersion(): return '580.65.06'\ndef nvmlDeviceGetHandleByIndex(i): return i\n"
        "def nvmlDeviceGetCudaComputeCapability(h): return (9, 0)\ndef nvmlDeviceGetName(h): return str(os.getpid())\n"
        "def nvmlDeviceGetUUID(h): return 'GPU-a'\n"
        "def nvmlDeviceGetMemoryInfo(h): return types.SimpleNamespace(total=7)\n"
        "def nvmlDeviceGetPciInfo(h): return types.SimpleNamespace(busId='00000000:01:00.0')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = probe(tmp_path, {})
    assert (found.uuid, found.arch, found.memory, found.driver) == ("GPU-a", "sm_90", 7, "NVIDIA 580.65.06")
    assert found.name != str(os.getpid())
    (tmp_path / "pynvml.py").write_text("raise ImportError('no library')")
    assert probe(tmp_path, {}) == ()


def test_both_ways_name_the_driver_alike(machine: Any) -> None:
    machine.file("proc/driver/nvidia/gpus/0000:1b:00.0/information", INFORMATION.format(0, "0000:1b:00.0"))
    machine.file("proc/driver/nvidia/version", PROPRIETARY)
    from_files = probe(machine.root, {}, FakeNVML(broken=True))[0].driver
    assert probe(machine.root, {}, FakeNVML(driver="535.129.03"))[0].driver == from_files


def test_a_result_is_found_again_under_the_driver(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.file("proc/driver/nvidia/gpus/0000:1b:00.0/information", INFORMATION.format(0, "0000:1b:00.0"))
    machine.file("proc/driver/nvidia/version", PROPRIETARY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(machine.root / "cache"))
    driver = driver_text(probe(machine.root, {}, FakeNVML(broken=True))[0].driver)
    record = ConformanceRecord(
        core="0.1.0", plugin="0.1.0", driver=driver, highest="L3", profile="quick", when="2026-11-30T00:00:00+00:00"
    )
    assert write_record("cuda", record) is not None
    assert last_record("cuda", "0.1.0", "0.1.0", driver)[0] == record
    machine.file("proc/driver/nvidia/version", OPEN)
    found, line = last_record(
        "cuda", "0.1.0", "0.1.0", driver_text(probe(machine.root, {}, FakeNVML(broken=True))[0].driver)
    )
    assert found is None
    assert "535.129.03" in line


def test_nothing_there_is_no_device(machine: Any) -> None:
    assert probe(machine.root, {}, FakeNVML(broken=True)) == ()


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        ("GPU-b", [1]),
        ("GPU-", []),  # ambiguous
        ("0,9,1", [0]),  # up to the first unknown one
        ("1,1", [1]),
    ],
)
def test_visibility_is_cudas(value: str | None, ids: list[int]) -> None:
    devices = [DeviceInfo(id=index, name="GPU", uuid=f"GPU-{letter}") for index, letter in enumerate("abc")]
    assert [info.id for info in visible(devices, value)] == ids


def test_telemetry_leaves_out_what_a_card_does_not_tell() -> None:
    nvml = FakeNVML()
    telemetry = Telemetry("GPU-0", nvml)
    figures = telemetry.read()
    assert figures["power_watts"] == 650
    assert "memory_used_bytes" in figures
    assert nvml.num_open == 1
    telemetry.close()
    assert (nvml.num_open, telemetry.read()) == (0, {})
    assert Telemetry("GPU-0", FakeNVML(broken=True)).read() == {}
