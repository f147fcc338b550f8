"""The Tenon contract: what a hardware platform and the engine say to each other.

Importing this package imports neither torch nor a plugin; names load their module when first used (PEP 562).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "adjustments": ("Adjustment", "Ledger"),
    "attention": ("AttentionBackend", "AttentionKernel", "GraphSupport", "attention_kernel"),
    "batch": (
        "AttentionBatch",
        "GQAInputs",
        "HostBatch",
        "Logprobs",
        "RowColumn",
        "RowState",
        "SamplingBatch",
        "StepInputs",
        "StepOutputs",
    ),
    "capabilities": ("Capabilities", "Determinism"),
    "collectives": ("CollectiveFlags", "Collectives", "TorchCollectives"),
    "device": ("Device", "DeviceInfo", "Event", "Fault", "LoadPolicy", "MemoryInfo", "ProcessModel"),
    "dtypes": ("DType",),
    "errors": (
        "CapacityError",
        "ConfigError",
        "DeviceError",
        "PluginError",
        "RequestError",
        "TenonError",
    ),
    "execution": ("EagerExecutable", "EngineLimits", "Executable", "ExecutableKind", "Execution"),
    "handshake": ("load_selected",),
    "hookspecs": ("control_plane", "hookimpl"),
    "kv_layout": ("KVLayout", "LayoutKind"),
    "manifest": ("Manifest", "read_manifests"),
    "model": ("AttentionMixer", "GatedMLP", "Head", "Layer", "ModelSpec", "MoE", "NormSpec"),
    "ops.attention": ("AttentionSpec",),
    "ops.embedding": ("EmbeddingSpec",),
    "kernel": ("Kernel", "KernelFlags", "No", "WeightUse"),
    "ops.linear": ("Dense", "GGUFBlocks", "LinearPart", "MergedLinearSpec", "WeightScheme"),
    "ops.mlp": ("ActivationMulSpec", "GatedMLPSpec"),
    "ops.moe": ("MoESpec",),
    "ops.norm": ("AddRMSNormSpec", "RMSNormSpec"),
    "ops.normed": ("AddRMSNormThenSpec",),
    "ops.quantized": ("FP8Block", "FP8Static", "Int8Channel", "IntGroups"),
    "ops.rope": ("QKNormRopeKVWriteSpec", "RopeScaling", "RopeSpec"),
    "ops.rows": ("PrepareInputsSpec", "RowWritesSpec"),
    "ops.sampling": ("SamplerSpec", "TokenLogprobsSpec"),
    "ops.spec": ("Spec", "feature"),
    "ops.table": ("OpTable",),
    "ops.weights": ("GatedMLPWeights", "LinearWeights", "MoEWeights", "NormedWeights"),
    "platform": ("Platform",),
    "selection": ("PluginState", "Selection", "SelectionRequest", "select"),
    "shapes": ("DynamicShapes", "LatticeShapes", "SamplingMode", "ScheduleLimits", "ShapeKey", "ShapePolicy"),
    "version": ("CONTRACT_VERSION", "contract_version_text"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
