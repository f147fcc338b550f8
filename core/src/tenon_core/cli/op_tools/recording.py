"""Watching ops: an op table whose kernels also hand a copy of what they are called with to a `Recorder`.

A case is a spec, the inputs of one call, and the weights as the checkpoint has them, before a kernel prepared them: so
it can be replayed on any platform. Copies are made on the device and fetched at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tenon_platforms.attention import AttentionKernel
from tenon_platforms.kernel import Kernel, WeightUse
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.spec import Spec
from tenon_platforms.ops.table import OpTable

from .recorder import ARGUMENTS, WEIGHTS, Recorder
from .recording_backend import RecordingBackend


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

    attention = next((one.spec for one in context[:1] if isinstance(one, RecordingBackend)), None)

    def run(*given: Any, **options: Any) -> Any:
        recorder.take(spec, names, given, attention)
        return kernel.run(*given, **options)

    def prepare(weights: Any, uses: tuple[WeightUse, ...]) -> Any:
        prepared = kernel.bind(weights, *uses)
        recorder.bound(spec, prepared, weights)
        return prepared

    watched: Callable[..., Any] | None = prepare if WEIGHTS in names else kernel.prepare
    return replace(kernel, run=run, prepare=watched)
