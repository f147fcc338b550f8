"""The core and the contract know no device: no vendor's or device family's name in any word of their files.

Words are what camel case, underscores and punctuation leave, in code, texts and comments alike ("ascending" is fine,
`is_cuda` and `CudaGraph` are not). The host's own processor may be named. Two more ways around the device socket are
refused: `torch.accelerator`, and asking a tensor or device for its type.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping

from architecture.sources import Source, dotted

NAMES = frozenset(
    {
        "cuda",
        "cudnn",
        "cublas",
        "cutlass",
        "nvidia",
        "nvml",
        "nccl",
        "rocm",
        "hip",
        "rccl",
        "miopen",
        "amd",
        "amdgpu",
        "xpu",
        "sycl",
        "oneapi",
        "ipex",
        "intel",
        "tpu",
        "pjrt",
        "xla",
        "libtpu",
        "ascend",
        "npu",
        "cann",
        "hccl",
        "huawei",
        "gaudi",
        "habana",
        "hpu",
        "triton",
        "mps",
        "metal",
        "mlx",
        "apple",
        "musa",
        "maca",
    }
)
EXEMPT_FILES = frozenset({"tenon_platforms/known_hardware.toml"})  # the contract's table of known hardware
ALLOWED: Mapping[tuple[str, str], str] = {}  # (file, word) -> why; empty, and meant to stay so
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
FORBIDDEN_ATTRIBUTES = ("torch.accelerator", "torch.get_device_module")


def violations(sources: Iterable[Source], allowed: Mapping[tuple[str, str], str] = ALLOWED) -> list[str]:
    """Every place that names a device."""
    found = []
    for source in sources:
        if source.name in EXEMPT_FILES:
            continue
        for number, line in enumerate(source.text.splitlines(), 1):
            for word in WORD.findall(line):
                if word.lower() in NAMES and (source.name, word.lower()) not in allowed:
                    found.append(f"{source.name}:{number} names {word!r}")
        if source.path.suffix == ".py":
            found += _calls(source)
    return found


def _calls(source: Source) -> list[str]:
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and dotted(node) in FORBIDDEN_ATTRIBUTES:
            found.append(f"{source.at(node)} uses {dotted(node)}: the device socket is the only way to a device")
        if isinstance(node, ast.Compare) and any(_asks_type(one) for one in [node.left, *node.comparators]):
            found.append(f"{source.at(node)} compares a device's type: capabilities are data")
    return found


def _asks_type(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "type" and dotted(node.value).endswith("device")
