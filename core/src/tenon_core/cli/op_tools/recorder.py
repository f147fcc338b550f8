"""`Recorder`: which calls of a run are kept as cases. Knows no op table; `recording.py` gives it the calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.spec import Spec

from .case_file import Case, weight_bytes

# What each op is called with, by the reference's docstring. None: made anew at a replay; WEIGHTS: prepared weights.
WEIGHTS = "(weights)"
ARGUMENTS: dict[str, tuple[str | None, ...]] = {
    "rms_norm": ("x", WEIGHTS),
    "add_rms_norm": ("x", "residual", WEIGHTS),
    "add_rms_norm_then": ("x", "residual", WEIGHTS),
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

    def take(
        self, spec: Spec, names: tuple[str | None, ...], given: tuple[Any, ...], attention: AttentionSpec | None
    ) -> None:
        """Keep one call, if it is new. attention: whose cache it writes, if it writes one."""
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
        self.cases.append(
            Case(
                spec=spec,
                inputs={str(name): value.clone() for name, value in inputs.items()},
                weights=weights,
                attention=attention,
            )
        )
