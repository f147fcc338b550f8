"""What a GPU can do by its compute capability, as data, and what the platform changes about a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenon_platforms.adjustments import Adjustment
from tenon_platforms.capabilities import Capabilities, Determinism
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError
from tenon_platforms.execution import ExecutableKind

from .options import CUDAOptions

if TYPE_CHECKING:
    from tenon_platforms.device import Device

WHO = "cuda"
BF16_FROM, FP8_FROM = (8, 0), (8, 9)


@dataclass(frozen=True, slots=True, order=True)
class Arch:
    """A compute capability: (9, 0) is Hopper."""

    major: int
    minor: int

    @classmethod
    def of(cls, device: Device) -> Arch:
        """Of an open device, as the runtime says it."""
        import torch

        return cls(*torch.cuda.get_device_capability(device.torch_device))

    @property
    def has_bf16(self) -> bool:
        """Matrix instructions for bfloat16: Ampere and newer."""
        return (self.major, self.minor) >= BF16_FROM

    @property
    def has_fp8(self) -> bool:
        """Matrix instructions for 8-bit floats: Ada, Hopper and newer."""
        return (self.major, self.minor) >= FP8_FROM

    def __str__(self) -> str:
        return f"sm_{self.major}{self.minor}"


def capabilities(arch: Arch, *, quantize: str, kernels: str = "auto") -> Capabilities:
    """dtypes: those with matrix instructions first. Raises `ConfigError` where `quantize` needs a newer card.

    kernels: the option; torch alone has no product of FP8 in blocks.
    """
    if quantize == "fp8" and not arch.has_fp8:
        raise ConfigError(
            f"--platform-opt cuda.quantize=fp8: this GPU ({arch}) has no 8-bit float products; they begin with sm_89",
            remedy="leave the option out",
        )
    dtypes = (DType.BFLOAT16, DType.FLOAT16) if arch.has_bf16 else (DType.FLOAT16,)
    return Capabilities(
        dtypes=(*dtypes, DType.FLOAT32),
        kv_dtypes=(*dtypes, DType.FLOAT32, *((DType.FLOAT8_E4M3,) if arch.has_fp8 else ())),
        schemes={
            "dense-*": "native",
            "fp8-block": "native" if arch.has_fp8 and kernels == "auto" else "dequantize",
            "fp8-*": "native" if arch.has_fp8 else "dequantize",
            "gguf-*": "dequantize",
            "int8-*": "dequantize",
            "int4-*": "dequantize",
        },
        executable=ExecutableKind.CAPTURE,
        determinism=Determinism.RUN,
    )


def adjustments(requested: Mapping[str, Any], settings: CUDAOptions) -> Iterator[Adjustment]:
    """What the platform's options mean for fields of the configuration that were left open."""
    if requested.get("block_size") is None and settings.kv_block_size:
        yield Adjustment(
            field="block_size",
            requested=None,
            effective=settings.kv_block_size,
            reason="--platform-opt cuda.kv_block_size says so",
            severity="performance",
            who=WHO,
        )
    if not settings.graphs and not requested.get("enforce_eager"):
        yield Adjustment(
            field="enforce_eager",
            requested=requested.get("enforce_eager"),
            effective=True,
            reason="--platform-opt cuda.graphs=false turns captured steps off",
            severity="performance",
            who=WHO,
        )
