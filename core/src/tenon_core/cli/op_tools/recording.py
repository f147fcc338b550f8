"""Watching ops: an op table whose kernels also hand a copy of what they are called with to a `Recorder`.

A case is a spec, the inputs of one call, and the weights as the checkpoint has them, before a kernel prepared them: so
it can be replayed on any platform. Copies are made on the device and fetched at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from tenon_platforms.attention import AttentionKernel
from tenon_platforms.kernel import Kernel, WeightUse
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.spec import Spec
from tenon_platforms.ops.table import OpTable

from .case_file import Case, weight_bytes
from .recording_backend import RecordingBackend

# What each op is called with, by the reference's docstring. None: made anew at a replay; WEIGHTS: prepared weights.
WEIGHTS = "(weights)"
ARGUMENTS: dict[str, tuple[str | None, ...]] = {
    "rms_norm": ("x", WEIGHTS),
    "add_rms_norm": ("x", "residual", WEIGHTS),
    "merged_linear": ("x", WEIGHTS),
    "embedding": ("token_ids", WEIGHTS),
    "activation_mul": ("x",),
    "gated_mlp": ("x", WEIGHTS),
    "moe_layer": ("x", WEIGHTS),
    "rope": ("q", "k", "positions", None),
    "qk_norm_rope_kv_write": ("qkv", "positions", None, "q_weight", "k_weight", None, "slots"),
}
RECORDED_OPS = (*ARGUMENTS, "attention")


@dataclass(slots=True, kw_only=True)
class Recorder:
    """Keeps cases. ops: only these, all where empty. calls: kept of one spec and one layer; max_bytes: of one case.

    Of a spec that many layers share, the first layer's and the last layer's calls are kept: values grow with depth.
    """

    ops: frozenset[str] = frozenset()
    calls: int = 2
    max_bytes: int = 256 << 20
    active: bool = False  # not before the engine is ready: a start's dummy steps are no cases
    cases: list[Case] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)  # op -> bytes of the smallest case that was too large
    _seen: dict[tuple[Spec, int], set[tuple[int, ...]]] = field(default_factory=dict)
    _weights: dict[Spec, list[tuple[Any, Any]]] = field(default_factory=dict)  # (prepared, as stored): first, last

    def wants(self, op: str) -> bool:
        """Whether calls of this op are kept."""
        return op in RECORDED_OPS and (not self.ops or op in self.ops)

    def bound(self, spec: Spec, prepared: Any, weights: Any) -> None:
        """A layer's weights were prepared."""
        kept = self._weights.setdefault(spec, [])
        kept[1:] = [(prepared, weights)]

    def is_new(self, spec: Spec, layer: int, sizes: tuple[int, ...]) -> bool:
        """Whether a call of these sizes is to be kept; it then counts as kept."""
        seen = self._seen.setdefault((spec, layer), set())
        if not self.active or sizes in seen or len(seen) >= self.calls:
            return False
        seen.add(sizes)
        return True

    def take(self, spec: Spec, names: tuple[str | None, ...], given: tuple[Any, ...], context: tuple[Any, ...]) -> None:
        """Keep one call, if it is new."""
        layer, weights = 0, None
        if WEIGHTS in names:
            prepared = given[names.index(WEIGHTS)]
            kept = self._weights.get(spec, [])
            found = [place for place, (held, _) in enumerate(kept) if held is prepared]
            if found:
                layer, weights = found[0], kept[found[0]][1]
            elif isinstance(prepared, Tensor):  # given as it is stored, as a head's norm is
                weights = prepared
            else:
                return
        inputs = {
            name: value
            for name, value in zip(names, given, strict=False)
            if name not in (None, WEIGHTS) and isinstance(value, Tensor)
        }
        if not self.is_new(spec, layer, tuple(size for value in inputs.values() for size in value.shape)):
            return
        size = weight_bytes(weights) + sum(value.numel() * value.element_size() for value in inputs.values())
        if size > self.max_bytes:
            self.skipped[spec.op] = min(size, self.skipped.get(spec.op, size))
            return
        backend = context[0] if context and isinstance(context[0], RecordingBackend) else None
        self.cases.append(
            Case(
                spec=spec,
                inputs={str(name): value.clone() for name, value in inputs.items()},
                weights=weights,
                attention=None if backend is None else backend.spec,
            )
        )


@dataclass(slots=True, kw_only=True)
class RecordingTable(OpTable):
    """An op table whose kernels are watched."""

    recorder: Recorder

    def choose(self, spec: Spec, *context: Any) -> Kernel:
        return _watched(OpTable.choose(self, spec, *context), spec, context, self.recorder)

    def offered(self, spec: Spec) -> Kernel | None:
        kernel = OpTable.offered(self, spec)
        return None if kernel is None else _watched(kernel, spec, (), self.recorder)


def _watched(kernel: Kernel, spec: Spec, context: tuple[Any, ...], recorder: Recorder) -> Kernel:
    if not recorder.wants(spec.op) and not isinstance(spec, AttentionSpec):
        return kernel
    if isinstance(spec, AttentionSpec) and isinstance(kernel, AttentionKernel):
        backend = RecordingBackend(kernel.backend, spec, recorder)
        return replace(kernel, backend=backend, run=backend.run)
    names = ARGUMENTS.get(spec.op)
    if names is None:
        return kernel

    def run(*given: Any, **options: Any) -> Any:
        recorder.take(spec, names, given, context)
        return kernel.run(*given, **options)

    def prepare(weights: Any, uses: tuple[WeightUse, ...]) -> Any:
        prepared = kernel.bind(weights, *uses)
        recorder.bound(spec, prepared, weights)
        return prepared

    watched: Callable[..., Any] | None = prepare if WEIGHTS in names else kernel.prepare
    return replace(kernel, run=run, prepare=watched)
