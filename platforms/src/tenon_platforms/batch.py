"""What one step hands to kernels: inputs, rows' device state, and the batches of attention and sampling.

Every tensor lives on the device. The index tensors of `StepInputs` are views of one packed int32 buffer, which came in
one copy; for a static key they are the same tensors at every step. Torch is needed only by those who make them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .shapes import SamplingMode, ShapeKey

if TYPE_CHECKING:
    from torch import Tensor


class RowColumn(IntEnum):
    """Columns of `RowState.params`, int32. Those marked f hold float32 bits."""

    TEMPERATURE = 0  # f; 0: greedy
    TOP_P = 1  # f
    MIN_P = 2  # f
    REPETITION = 3  # f
    PRESENCE = 4  # f
    FREQUENCY = 5  # f
    TOP_K = 6  # 0: off
    NOISE_KEY0 = 7  # sequence key of noise.py
    NOISE_KEY1 = 8
    COUNT_SLOT = 9  # of RowState.counts; 0: none
    EDIT_SLOT = 10  # of RowState.edits; 0: none
    EDIT_UNTIL = 11  # edits[slot, 1] apply to tokens at positions before this
    ADAPTER = 12  # LoRA slot; 0: none


NUM_ROW_COLUMNS = len(RowColumn)
FLOAT_COLUMNS = (
    RowColumn.TEMPERATURE,
    RowColumn.TOP_P,
    RowColumn.MIN_P,
    RowColumn.REPETITION,
    RowColumn.PRESENCE,
    RowColumn.FREQUENCY,
)


@dataclass(slots=True, kw_only=True)
class RowState:
    """The rows' memory on the device; row `num_rows` is the dummy row on the null block.

    last_tokens: int32 [rows + 1], the newest token of each row. params: int32 [rows + 1, NUM_ROW_COLUMNS].
    block_tables: int32 [groups, rows + 1, blocks], one table a layer group. counts: int32 [slots, 2, vocab]: prompt
    tokens (0 or 1), output counts. edits: float32 [slots, 2, vocab] added to logits: always; up to EDIT_UNTIL. Slot 0
    belongs to nobody.
    """

    last_tokens: Tensor
    params: Tensor
    block_tables: Tensor
    counts: Tensor
    edits: Tensor


@dataclass(slots=True, kw_only=True)
class HostBatch:
    """The host's view of a step, before padding.

    query_lens, seq_lens: int32 [rows]; seq_lens counts the step's own tokens, and is an upper bound where a row's
    earlier tokens are still in flight (speculation; a step without it has exact ones). query_lens are exact. The first
    `num_decodes` rows have one token each.
    """

    num_tokens: int
    num_rows: int
    num_logits: int
    num_decodes: int
    query_lens: npt.NDArray[np.int32]
    seq_lens: npt.NDArray[np.int32]
    max_query: int
    max_seq: int


@dataclass(slots=True, kw_only=True)
class StepInputs:
    """Index tensors of one step, int32, padded to `key`.

    token_ids: [tokens], -1: the row's last token. positions: [axes, tokens], as the model counts them: those of a
    rotation with several axes are no places in the sequence, and of models with several token types the last axis is
    each token's type. token_rows: [tokens], index into rows; padding tokens name a padding row of their own in a
    decode, else the last row, which may be a real one.
    rows: [rows], ids of rows; padding rows are the dummy row. query_starts: [rows + 1], padding rows of a prefill are
    empty. seq_lens: [rows], 1 of padding rows.
    logit_index: [logits], which tokens give logits. logit_rows: [logits], the row sampled for, dummy: none.
    targets: [logits], a prompt's next token whose log-probability is wanted, -1: the sampled one. With a pooling head:
    0, the row's pooled vector, or 1, the token's own.
    write_places, write_blocks: [groups * rows], block-table entries that are new with this step, as flat indices into
    `RowState.block_tables`; padding rewrites the dummy row. `row_writes` applies them before `plan`. num_valid: [3],
    valid tokens, rows, logits: what lies past them is padding.
    """

    key: ShapeKey
    host: HostBatch
    token_ids: Tensor
    positions: Tensor
    token_rows: Tensor
    rows: Tensor
    query_starts: Tensor
    seq_lens: Tensor
    logit_index: Tensor
    logit_rows: Tensor
    targets: Tensor
    write_places: Tensor
    write_blocks: Tensor
    num_valid: Tensor


@dataclass(slots=True, kw_only=True)
class AttentionBatch:
    """One layer group's part of a step, for `plan` and `run`.

    block_table: int32 [all rows + 1, blocks] of the group; row i of the batch is rows[i] of it. A block number times
    `block_size` is the block's first slot. The rest as in `StepInputs`.
    """

    block_table: Tensor
    block_size: int
    rows: Tensor
    query_starts: Tensor
    seq_lens: Tensor
    token_rows: Tensor
    positions: Tensor
    num_valid: Tensor
    key: ShapeKey
    host: HostBatch


@dataclass(slots=True, kw_only=True)
class GQAInputs:
    """Inputs of grouped-query attention. query: [tokens, heads, head_dim]; cache: one layer's KV, already written.

    sinks: float32 [heads], where and only where the spec says `sinks`.
    """

    query: Tensor
    cache: Any
    sinks: Tensor | None = None


@dataclass(slots=True, kw_only=True)
class SamplingBatch:
    """What the sampler needs beside logits. All [logits] unless said.

    positions: absolute position of the token to be chosen. params: int32 [logits, NUM_ROW_COLUMNS] of each logit row.
    counts, edits: of `RowState`; counts of sampled tokens are updated. grammar_mask: int32 [logits, ceil(vocab / 32)],
    bit v of word v / 32 set: allowed.
    """

    mode: SamplingMode
    positions: Tensor
    params: Tensor
    counts: Tensor
    edits: Tensor
    grammar_mask: Tensor | None = None


@dataclass(slots=True, kw_only=True)
class Logprobs:
    """Of each logit row. chosen: float32 [n]; rank: int32 [n], 1 = best; top_ids: int32 [n, k]; top: float32 [n, k]."""

    chosen: Tensor
    rank: Tensor
    top_ids: Tensor
    top: Tensor


@dataclass(slots=True, kw_only=True)
class StepOutputs:
    """What a step leaves on the device.

    tokens: int32 [logits, 1 + draft length]; num_accepted: int32 [logits], tokens of each row that count; None: all
    of them, as without speculation. hidden: float32 [logits, width], what a pooling head made; then tokens are zero.
    """

    tokens: Tensor
    num_accepted: Tensor | None = None
    logprobs: Logprobs | None = None
    hidden: Tensor | None = None
