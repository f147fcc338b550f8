"""`Kernel`, `No` and `KernelFlags`: what an offer answers to a spec.

A kernel is chosen once, when a model is built. `prepare` turns checkpoint weights into whatever the kernel wants
(packed, swizzled, quantized); `run` is a plain callable that takes prepared weights and tensors. State (KV cache,
counts) is always an explicit argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFlags:
    """Facts about a kernel, as data.

    graph_safe: may run inside a captured or traced executable. deterministic: the same inputs give the same bits.
    batch_invariant: a token's result does not depend on what else is in the batch. writes_out: `out=` is written when
    given (callers use the returned value either way). in_place: names of arguments that are overwritten.
    """

    graph_safe: bool = True
    deterministic: bool = True
    batch_invariant: bool = False
    writes_out: bool = False
    in_place: tuple[str, ...] = ()
    workspace_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUse:
    """One use of a weight: a tied embedding is used by `embedding` and by `lm_head`. Told to `prepare`."""

    op: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One way to compute a spec.

    name: shown by `tenon ops`. run: the callable; its arguments are the op's, in the reference's docstring.
    prepare(weights, uses): called once per layer; returns what `run` takes as `weights`. None: weights pass unchanged.
    restore(prepared): the inverse; None with a `prepare` means that preparing is irreversible (no in-place update).
    native: "native" | "emulated" | "dequantize", how a quantized scheme is served.
    """

    name: str
    run: Callable[..., Any]
    prepare: Callable[[Any, tuple[WeightUse, ...]], Any] | None = None
    restore: Callable[[Any], Any] | None = None
    native: str = "native"
    flags: KernelFlags = field(default_factory=KernelFlags)

    def bind(self, weights: Any, *uses: WeightUse) -> Any:
        """Prepared weights for `run`."""
        return weights if self.prepare is None else self.prepare(weights, uses)


@dataclass(frozen=True, slots=True)
class No:
    """A refusal with its reason, and what would work instead where that is known."""

    reason: str
    alternative: str | None = None

    def __str__(self) -> str:
        return self.reason if self.alternative is None else f"{self.reason}; instead: {self.alternative}"
