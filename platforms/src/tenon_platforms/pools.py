"""The pools of a device's memory that a sleeping engine gives back. Torch-free: messages name them."""

from __future__ import annotations

from enum import Enum


class Pool(str, Enum):
    """WEIGHTS come back as they were, a KV_CACHE comes back zeroed."""

    WEIGHTS = "weights"
    KV_CACHE = "kv_cache"
