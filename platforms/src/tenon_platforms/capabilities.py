"""Capabilities: what a platform can do, as data. Claims are tested both ways by the conformance kit.

A request feature listed in `refused` is turned away at admission with its reason. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from .dtypes import DType


class ExecutableKind(str, Enum):
    """How a platform runs a step function."""

    EAGER = "eager"
    CAPTURE = "capture"
    TRACE = "trace"


class Determinism(str, Enum):
    """NONE; RUN: same machine, same inputs, same bits; BATCH: also whatever else is in the batch (on request)."""

    NONE = "none"
    RUN = "run"
    BATCH = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What one platform can do on this machine.

    dtypes: of weights and activations, best first; "auto" takes the checkpoint's where listed, else the first.
    schemes: quantization scheme id -> "native" | "emulated" | "dequantize"; a prefix ending in * matches.
    index_dtype: of what indexes on the device; the KV pool's slots and a step's tokens are kept within it and int32.
    determinism: what is promised; `--batch-invariant` is refused without BATCH.
    refused: request feature -> reason; the features are seed, penalties, logprobs, prompt_logprobs, logit_bias,
    allowed_token_ids, min_p, top_k, top_p and structured_outputs.
    """

    dtypes: tuple[DType, ...] = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
    kv_dtypes: tuple[DType, ...] = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
    schemes: dict[str, str] = field(
        default_factory=lambda: {
            "dense-*": "native",
            "gguf-*": "dequantize",
            "fp8-*": "dequantize",
            "int8-*": "dequantize",
            "int4-*": "dequantize",
        }
    )
    index_dtype: DType = DType.INT32
    executable: ExecutableKind = ExecutableKind.EAGER
    determinism: Determinism = Determinism.RUN
    max_model_len: int | None = None
    refused: dict[str, str] = field(default_factory=dict)

    def scheme(self, scheme_id: str) -> str | None:
        """How a weight scheme is served, or None: not at all."""
        for pattern, how in self.schemes.items():
            if pattern == scheme_id or (pattern.endswith("*") and scheme_id.startswith(pattern[:-1])):
                return how
        return None
