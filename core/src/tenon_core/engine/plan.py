"""The resolved plan: everything start-up decided, as plain data with a fingerprint.

It is made once, frozen at *ready*, printed on request, and is what worker processes are started with; ranks compare
fingerprints before they serve.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from tenon_platforms.ops.table import OpTable

from .messages import KernelUse


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPlan:
    """config: effective flat configuration. kernels: spec fingerprint -> "op: kernel (source)"."""

    contract: str
    platform: str
    platform_version: str
    config: dict[str, Any]
    model_fingerprint: str
    dtype: str
    kv_dtype: str
    block_size: int
    num_blocks: int
    kernels: dict[str, str]
    lattice: tuple[str, ...]

    def fingerprint(self) -> str:
        """SHA-256 in hex; ranks that agree on it run the same kernels on the same shapes."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True, default=str).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def kernel_map(table: OpTable) -> dict[str, str]:
    """What a table chose, by spec fingerprint."""
    return {
        choice.spec.fingerprint(): f"{choice.spec.op}: {choice.kernel.name} ({choice.source})"
        for choice in table.choices
    }


def kernel_uses(table: OpTable) -> tuple[KernelUse, ...]:
    """What a table chose, for the operator's view: one entry an op and kernel, specs added up."""
    counts: dict[tuple[str, str, str], int] = {}
    for choice in table.choices:
        key = (choice.spec.op, choice.kernel.name, choice.source)
        counts[key] = counts.get(key, 0) + choice.num_uses
    return tuple(KernelUse(*key, count) for key, count in sorted(counts.items()))
