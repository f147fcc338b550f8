"""Reference kernel of `normed.py`: the parts, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ..kernel import Kernel, KernelFlags, WeightUse

if TYPE_CHECKING:
    from .normed import AddRMSNormThenSpec
    from .table import OpTable
    from .weights import NormedWeights


def add_rms_norm_then(spec: AddRMSNormThenSpec, table: OpTable) -> Kernel:
    """run(x, residual, weights) -> (y, sum): sum = x + residual in their dtype, y = then(norm(sum)).

    x, residual, sum: [tokens, hidden]; y: [tokens, out] of `then`. weights: NormedWeights, prepared part by part.
    """
    norm, then = table.choose(spec.norm), table.choose(spec.then)

    def prepare(weights: NormedWeights, uses: tuple[WeightUse, ...]) -> tuple[object, object]:
        return norm.bind(weights.norm, *uses), then.bind(weights.then, *uses)

    def run(x: Tensor, residual: Tensor, weights: tuple[object, object]) -> tuple[Tensor, Tensor]:
        rows, total = norm.run(x, residual, weights[0])
        return then.run(rows, weights[1]), total

    flags = KernelFlags(batch_invariant=norm.flags.batch_invariant and then.flags.batch_invariant)
    return Kernel(name="add_rms_norm + " + spec.then.op, run=run, prepare=prepare, flags=flags)
