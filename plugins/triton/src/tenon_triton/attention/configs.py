"""Tiles, warps and pipeline depths of the attention kernels, as a table: nothing is tuned while serving.

Choices by head size and element size are fitted to the device's fast memory. `benchmarks/triton_attention.py` compares
alternatives; a platform may pass its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..facts import DeviceFacts

MIN_ROWS = 16  # of a product's left side, and elements of its sums
MAX_PARTS = 128
JOIN_ELEMENTS = 4096  # values that a program joins at a time
WHOLE_STAGES = 4  # with fewer tiles on their way a single program is no match for memory


@dataclass(frozen=True, slots=True, kw_only=True)
class TileConfig:
    """One kernel's shape. tile: tokens of the context at a time. block_rows: tokens x heads of a prefill block."""

    tile: int
    warps: int
    stages: int
    block_rows: int = MIN_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """tile, warps, stages as in `TileConfig`. programs_per_unit: parts are added until there are so many programs for
    each compute unit. min_tokens: of a part. join: the last part of a row joins them all, without a second launch.
    tail: whole tiles have a loop of their own, without masks. fetches: so many of a part's tiles are fetched before the
    newest query is there, which pays where a step waits for one row and not for memory. strands: slices of a tile that
    have a softmax each, one for every warp (`strands.py`); 1: all warps share one.
    """

    tile: int
    warps: int
    stages: int
    programs_per_unit: int = 8
    min_tokens: int = 512
    join: bool = True
    tail: bool = False
    fetches: int = 0
    strands: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfigs:
    """What a backend launches: decodes, few tokens a row, many tokens a row.

    few: decodes whose rows and KV heads alone are not a program for each compute unit: a step waits for one row, not
    for memory. None: as others. whole: those of them that are one for more than half of the units: a program attends to
    a row's whole context, with more of it on its way, and nothing is joined. None: as `few`.
    """

    decode: DecodeConfig
    short: TileConfig
    long: TileConfig
    few: DecodeConfig | None = None
    whole: DecodeConfig | None = None

    def decode_for(self, rows: int, kv_heads: int, facts: DeviceFacts) -> DecodeConfig:
        """How so many rows are decoded."""
        programs = rows * kv_heads
        if self.few is None or programs > facts.compute_units:
            return self.decode
        return self.few if self.whole is None or 2 * programs <= facts.compute_units else self.whole

    @property
    def decodes(self) -> tuple[DecodeConfig, ...]:
        """Every way in which a row may be decoded."""
        return tuple(config for config in (self.decode, self.few, self.whole) if config is not None)


def next_power(value: int) -> int:
    """The least power of two that is at least `value`."""
    return 1 << (value - 1).bit_length()


def padded_dim(head_dim: int) -> int:
    """Elements of a head as kernels hold it: a power of two that products take."""
    return max(MIN_ROWS, next_power(head_dim))


def attention_configs(
    head_dim: int, group: int, kv_bytes: int, query_bytes: int, facts: DeviceFacts
) -> AttentionConfigs:
    """The table, fitted to the device."""
    padded = padded_dim(head_dim)
    token_bytes = 2 * padded * kv_bytes  # a key and a value
    rows = max(MIN_ROWS, next_power(group))
    if query_bytes == 4:  # exact float32 products run without matrix units
        long = TileConfig(tile=32, warps=4, stages=2, block_rows=max(rows, 32))
    elif padded <= 64:
        long = TileConfig(tile=64, warps=4, stages=3, block_rows=max(rows, 128))
    elif padded <= 128:
        long = TileConfig(tile=64, warps=8, stages=3, block_rows=max(rows, 128))
    else:
        long = TileConfig(tile=32, warps=8, stages=2, block_rows=max(rows, 64))
    short = TileConfig(tile=64 if padded <= 128 else 32, warps=4, stages=3, block_rows=rows)
    tile = 64 if padded <= 128 and query_bytes <= 2 else 32
    # rows of 200 to 1,600 tokens on an H200, 64 to 256 of them: 79 to 93 % of its memory's speed, groups of 2 and of 4
    decode = DecodeConfig(tile=tile, warps=4, stages=2, programs_per_unit=16, min_tokens=128)
    few = DecodeConfig(tile=tile, warps=2 if padded <= 128 else 4, stages=2, min_tokens=64, fetches=1)
    # 16 rows of 8 KV heads on an H200: 2 to 3 % of a layer, lost again at contexts of 4,096
    whole = DecodeConfig(tile=tile, warps=4, stages=6, programs_per_unit=1, min_tokens=64, fetches=5)
    whole = replace(whole, stages=_stages(whole.stages, whole.tile * token_bytes, 0, facts))
    query_room = {config: config.block_rows * padded * query_bytes for config in (short, long)}
    return AttentionConfigs(
        decode=replace(decode, stages=_stages(decode.stages, decode.tile * token_bytes, 0, facts)),
        short=replace(short, stages=_stages(short.stages, short.tile * token_bytes, query_room[short], facts)),
        long=replace(long, stages=_stages(long.stages, long.tile * token_bytes, query_room[long], facts)),
        few=replace(few, stages=_stages(few.stages, few.tile * token_bytes, 0, facts)),
        whole=whole if whole.stages >= WHOLE_STAGES else None,
    )


def _stages(wanted: int, tile_bytes: int, other_bytes: int, facts: DeviceFacts) -> int:
    """As many pipeline stages as fit; without asynchronous copies they would be registers, and two is all that pays."""
    most = wanted if facts.async_copies else min(wanted, 2)
    while most > 1 and (most * tile_bytes + other_bytes) > facts.shared_bytes:
        most -= 1
    return most


def max_parts(rows: int, kv_heads: int, config: DecodeConfig, facts: DeviceFacts) -> int:
    """Parts of a row, at most: enough programs for the device's units, one where rows alone are enough."""
    wanted = config.programs_per_unit * facts.compute_units // max(rows * kv_heads, 1)
    return max(1, min(wanted, MAX_PARTS))
