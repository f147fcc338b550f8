"""The sampler: the contract's tokens without sorting the vocabulary, in two to three launches, nothing on the host."""

from __future__ import annotations

from torch import Tensor

from tenon_platforms.batch import SamplingBatch
from tenon_platforms.kernel import Kernel, KernelFlags
from tenon_platforms.ops.sampling import SamplerSpec

from .choose import choose
from .cut import find_cut


def sampler(spec: SamplerSpec) -> Kernel:
    """run(logits, batch) -> tokens, as the reference's. logits: [rows, vocab] in any float type."""

    def run(logits: Tensor, batch: SamplingBatch) -> Tensor:
        logits = logits if logits.stride(-1) == 1 else logits.contiguous()
        cut = find_cut(logits, batch) if batch.mode.noise and batch.mode.filters else None
        return choose(logits, batch, cut)

    return Kernel(name="triton", run=run, flags=KernelFlags(batch_invariant=True, in_place=("batch.counts",)))
