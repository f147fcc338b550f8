"""What a configuration asks for, held against what the capabilities promise: data against data, no device."""

from __future__ import annotations

import logging

from tenon_core.config import EngineConfig
from tenon_platforms.capabilities import Capabilities, Determinism
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError

LOG = logging.getLogger(__name__)
INDEX = DType.INT32  # of slots, block tables and positions that the core passes


def check_determinism(config: EngineConfig, capabilities: Capabilities, platform: str) -> None:
    """Refuse `--batch-invariant` where it is not promised; warn where not even the same batch gives the same bits."""
    if config.platform.batch_invariant and capabilities.determinism is not Determinism.BATCH:
        raise ConfigError(
            f"--batch-invariant: platform {platform!r} does not promise the same tokens whatever else is in the batch"
            f" (its determinism is {capabilities.determinism.value!r})",
            remedy="leave out --batch-invariant, or choose a platform that promises it",
        )
    if capabilities.determinism is Determinism.NONE:
        LOG.warning("platform %r promises no determinism: the same seed may give other tokens", platform)


def max_index(capabilities: Capabilities) -> int:
    """The greatest index that the core may pass: of its own type, or of the platform's where that is narrower."""
    if not capabilities.index_dtype.value.startswith(("int", "uint")):
        raise ConfigError(f"the platform's index type is {capabilities.index_dtype.value}: expected whole numbers")
    return min(_greatest(INDEX), _greatest(capabilities.index_dtype))


def _greatest(dtype: DType) -> int:
    num_bits = 8 * dtype.num_bytes - dtype.value.startswith("int")  # but for the sign
    return (1 << num_bits) - 1


def max_blocks_of(capabilities: Capabilities, block_size: int) -> int:
    """How many blocks a pool may have: the slot of its last token must be an index."""
    return (max_index(capabilities) + 1) // block_size


def check_indices(capabilities: Capabilities, *, num_blocks: int, block_size: int, max_tokens: int) -> None:
    """Raise `ConfigError` where slots of the KV pool, or tokens of a step, go beyond what an index can say."""
    limit, index = max_index(capabilities), min(INDEX, capabilities.index_dtype, key=lambda dtype: dtype.num_bytes)
    if num_blocks * block_size - 1 > limit:
        raise ConfigError(
            f"{num_blocks} KV blocks of {block_size} tokens need slots up to {num_blocks * block_size - 1}; an index"
            f" here is {index.value} and goes up to {limit}",
            remedy=f"pass --num-blocks {max_blocks_of(capabilities, block_size)} or less",
        )
    if max_tokens > limit:
        raise ConfigError(
            f"max_num_batched_tokens is {max_tokens}; an index here is {index.value} and goes up to {limit}",
            remedy="lower --max-num-batched-tokens",
        )
