"""The file of recorded op cases: one safetensors file, whose metadata holds JSON under `tenon_op_cases`. No pickle.

    {"format": 1, "contract": "0.1", "model": ..., "platform": ..., "dtype": ..., "cases": [
      {"id": "rms_norm-0", "spec": {"spec": "RMSNormSpec", ...},   as Spec.to_dict
       "inputs": {"x": "3"},                        argument -> name of a tensor
       "weights": {"tensor": "4"} | {"part": {NAME: "5"}} | {"linear": {"parts": [...], "bias": ...}} |
                  {"gated_mlp": {"gate_up": ..., "down": ...}} | {"normed": {"norm": ..., "then": ...}} |
                  {"moe": {"router": ..., "gate": ..., ...}} | null,
       "attention": spec or null,                   of a KV write: whose cache it writes
       "rows": [[tokens before, tokens now], ...]}  of attention: `context.i` holds row i's blocks in canonical form

The conformance kit reads it (`tenon_plugin_sdk.conformance.replay`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from tenon_platforms.errors import ConfigError
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.spec import Spec
from tenon_platforms.ops.weights import GatedMLPWeights, LinearWeights, MoEWeights, NormedWeights
from tenon_platforms.version import contract_version_text

FORMAT = 1
KEY = "tenon_op_cases"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call of an op. weights: as the checkpoint has them; None where the op has none."""

    spec: Spec
    inputs: dict[str, Tensor]
    weights: Any
    attention: AttentionSpec | None
    rows: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True, kw_only=True)
class _Tensors:
    """Tensors by name, each once: a tied weight stands in several cases."""

    to_host: Callable[[Tensor], Tensor]
    held: dict[str, Tensor] = field(default_factory=dict)
    _names: dict[int, tuple[Tensor, str]] = field(default_factory=dict)

    def add(self, tensor: Tensor) -> str:
        """The name of a tensor in the file."""
        known = self._names.get(id(tensor))
        if known is None:
            known = self._names[id(tensor)] = (tensor, str(len(self.held)))  # the tensor, so that its id stays its own
            self.held[known[1]] = self.to_host(tensor)
        return known[1]


def write_cases(
    path: Path, cases: Iterable[Case], *, to_host: Callable[[Tensor], Tensor], about: dict[str, str]
) -> int:
    """Write the file; returns its bytes. Raises `ConfigError` where it cannot be written."""
    from safetensors.torch import save_file

    tensors, numbers, listed = _Tensors(to_host=to_host), dict[str, int](), []
    for case in cases:
        number = numbers[case.spec.op] = numbers.get(case.spec.op, -1) + 1
        listed.append(
            {
                "id": f"{case.spec.op}-{number}",
                "spec": case.spec.to_dict(),
                "inputs": {name: tensors.add(value) for name, value in case.inputs.items()},
                "weights": None if case.weights is None else _weights(case.weights, tensors),
                "attention": None if case.attention is None else case.attention.to_dict(),
                "rows": [list(row) for row in case.rows],
            }
        )
    header = {"format": FORMAT, "contract": contract_version_text(), **about, "cases": listed}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors.held, path, metadata={KEY: json.dumps(header)})
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}", remedy="choose another place with --output") from error
    return path.stat().st_size


def _weights(weights: Any, tensors: _Tensors) -> dict[str, Any]:
    if isinstance(weights, Tensor):
        return {"tensor": tensors.add(weights)}
    if isinstance(weights, dict):
        return {"part": {name: tensors.add(value) for name, value in weights.items()}}
    if isinstance(weights, LinearWeights):
        bias = None if weights.bias is None else tensors.add(weights.bias)
        return {"linear": {"parts": [_weights(part, tensors) for part in weights.parts], "bias": bias}}
    if isinstance(weights, GatedMLPWeights):
        return {"gated_mlp": {name: _weights(getattr(weights, name), tensors) for name in ("gate_up", "down")}}
    if isinstance(weights, NormedWeights):
        return {"normed": {"norm": tensors.add(weights.norm), "then": _weights(weights.then, tensors)}}
    assert isinstance(weights, MoEWeights), f"no stored form of {type(weights).__name__}"
    experts = {name: _weights(getattr(weights, name), tensors) for name in ("gate", "up", "down")}
    return {"moe": {"router": tensors.add(weights.router), **experts}}


def weight_bytes(weights: Any) -> int:
    """Bytes of stored weights."""
    return sum(tensor.numel() * tensor.element_size() for tensor in _leaves(weights))


def _leaves(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, LinearWeights):
        yield from (tensor for part in value.parts for tensor in part.values())
        yield from () if value.bias is None else (value.bias,)
    elif isinstance(value, GatedMLPWeights):
        yield from (*_leaves(value.gate_up), *_leaves(value.down))
    elif isinstance(value, NormedWeights):
        yield from (value.norm, *_leaves(value.then))
    elif isinstance(value, MoEWeights):
        yield from (value.router, *_leaves(value.gate), *_leaves(value.up), *_leaves(value.down))
