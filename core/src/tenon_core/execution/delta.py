"""`StepDelta`: everything a runner is told about one step, and nothing it was told before.

It is the runner's only input, in this process or in another: plain numbers and int32 arrays, serialisable as msgpack.
Rows that go on decoding cost three arrays; whatever else is in a delta belongs to rows that changed.

    rows        [ decodes ..., prefills ... ]       one entry a scheduled row, decodes first
    num_tokens  [ 1 1 1 ...,   chunk ... ]          tokens computed for it
    token_ids   [              chunk tokens ... ]   prefill tokens only; a decode reads its last token on the device
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tenon_platforms.shapes import GREEDY, SamplingMode

Int32 = npt.NDArray[np.int32]
NO_INTS: Int32 = np.zeros(0, dtype=np.int32)
NO_BLOCKS: Int32 = np.zeros((0, 4), dtype=np.int32)
NO_COPIES: Int32 = np.zeros((0, 2), dtype=np.int32)


class RowStart(msgspec.Struct, frozen=True, kw_only=True):
    """A row begins, or resumes after preemption, with these parameters.

    params: the row's line of `RowState.params`, int32 bits; its slot columns are filled in by the runner.
    counted: (prompt tokens, output tokens) as int32 bytes where penalties need counts. bias: always added to logits.
    allowed: the only ids allowed. banned: ids banned while the position is before the row's EDIT_UNTIL.
    """

    row: int
    params: bytes
    counted: tuple[bytes, bytes] | None = None
    bias: dict[int, float] = {}
    allowed: tuple[int, ...] | None = None
    banned: tuple[int, ...] = ()

    @property
    def has_edits(self) -> bool:
        """Whether the row needs a slot of logit edits."""
        return bool(self.bias) or self.allowed is not None or bool(self.banned)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDelta:
    """One step. Arrays are int32.

    rows, starts, num_tokens: [n]; starts: tokens already computed, the position of the row's first new token.
    num_decodes: how many leading rows have one token each, read on the device. token_ids: the other rows' tokens.
    sample_rows, sample_of: which row each logit is sampled for, and the index into `rows` whose last token gives it;
    None: every scheduled row samples for itself, in order. prompt_targets: [m, 2] of (index of a token in the step,
    next prompt token), rows of prompt log-probabilities, after the sampled ones; of a model with a pooling head, (index
    of a token, 0 for its row's vector or 1 for its own), and nothing is sampled. token_types: [prefill tokens], the
    segment of each, empty: 0.
    block_writes: [k, 4] of (group, row, index, block). block_copies: [c, 2], done before the step. max_blocks: most
    blocks of a scheduled row. started, released: rows that begin; rows whose slots are free again.
    """

    step: int
    rows: Int32
    starts: Int32
    num_tokens: Int32
    num_decodes: int
    max_blocks: int
    mode: SamplingMode = GREEDY
    token_ids: Int32 = field(default_factory=lambda: NO_INTS)
    sample_rows: Int32 | None = None
    sample_of: Int32 | None = None
    prompt_targets: Int32 = field(default_factory=lambda: NO_COPIES)
    token_types: Int32 = field(default_factory=lambda: NO_INTS)
    block_writes: Int32 = field(default_factory=lambda: NO_BLOCKS)
    block_copies: Int32 = field(default_factory=lambda: NO_COPIES)
    started: tuple[RowStart, ...] = ()
    released: tuple[int, ...] = ()


def encode_delta(delta: StepDelta) -> bytes:
    """The delta as msgpack."""
    return _ENCODER.encode(delta)


def decode_delta(data: bytes) -> StepDelta:
    """The inverse of `encode_delta`; raises `msgspec.ValidationError` for anything else."""
    return _DECODER.decode(data)


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [list(value.shape), np.ascontiguousarray(value, dtype="<i4").tobytes()]
    raise NotImplementedError(f"a step delta cannot hold {type(value).__name__}")


def _decode_array(kind: type, value: Any) -> Any:
    shape, data = value
    return np.frombuffer(data, dtype="<i4").reshape(shape)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_DECODER = msgspec.msgpack.Decoder(StepDelta, dec_hook=_decode_array)
