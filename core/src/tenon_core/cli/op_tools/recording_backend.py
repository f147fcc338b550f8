"""Watching attention: a backend around a backend, which hands each row's context to the recorder in canonical form."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tenon_platforms.attention import AttentionBackend
from tenon_platforms.batch import AttentionBatch, GQAInputs
from tenon_platforms.ops.attention import AttentionSpec

from .case_file import Case
from .recorder import Recorder


class RecordingBackend(AttentionBackend):
    """Everything is the inner backend's. `export_blocks` makes what is recorded independent of its layout."""

    def __init__(self, inner: AttentionBackend, spec: AttentionSpec, recorder: Recorder) -> None:
        self.spec = spec
        self.layout = inner.layout
        self.graph_support = inner.graph_support
        self.needs_exact_host_lengths = inner.needs_exact_host_lengths
        self._inner = inner
        self._recorder = recorder
        self._last: tuple[Any, AttentionBatch] | None = None  # plan, and the batch it is of

    def allocate(self, num_blocks: int, block_size: int, num_layers: int) -> list[Any]:
        return self._inner.allocate(num_blocks, block_size, num_layers)

    def plan(self, batch: AttentionBatch) -> Any:
        plan = self._inner.plan(batch)
        self._last = (plan, batch)
        return plan

    def update(self, plan: Any, batch: AttentionBatch) -> Any:
        plan = self._inner.update(plan, batch)
        self._last = (plan, batch)
        return plan

    def write_kv(self, key: Tensor, value: Tensor, cache: Any, slots: Tensor) -> None:
        self._inner.write_kv(key, value, cache, slots)

    def run(self, inputs: GQAInputs, plan: Any) -> Tensor:
        if self._last is not None and self._last[0] is plan and self._recorder.wants(self.spec.op):
            self._take(inputs, self._last[1])
        return self._inner.run(inputs, plan)

    def copy_blocks(self, caches: list[Any], source: Tensor, target: Tensor) -> None:
        self._inner.copy_blocks(caches, source, target)

    def export_blocks(self, cache: Any, blocks: Tensor) -> Tensor:
        return self._inner.export_blocks(cache, blocks)

    def import_blocks(self, cache: Any, blocks: Tensor, canonical: Tensor) -> None:
        self._inner.import_blocks(cache, blocks, canonical)

    def _take(self, inputs: GQAInputs, batch: AttentionBatch) -> None:
        """Keep the step: queries, and what each row's blocks hold. Lengths of the host are exact: nothing overlaps."""
        host, size = batch.host, batch.block_size
        if not self._recorder.is_new(self.spec, 0, (host.num_tokens, host.num_rows)):
            return
        table = batch.block_table.index_select(0, batch.rows[: host.num_rows])
        kept = {"query": inputs.query[: host.num_tokens].clone()}
        if inputs.sinks is not None:
            kept["sinks"] = inputs.sinks.clone()
        for row, length in enumerate(host.seq_lens.tolist()):
            blocks = table[row, : -(-length // size)].contiguous()
            kept[f"context.{row}"] = self._inner.export_blocks(inputs.cache, blocks).clone()
        lengths = zip(host.query_lens.tolist(), host.seq_lens.tolist(), strict=True)
        rows = tuple((length - now, now) for now, length in lengths)
        self._recorder.cases.append(Case(spec=self.spec, inputs=kept, weights=None, attention=None, rows=rows))
