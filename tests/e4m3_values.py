"""What a KV cache of float8_e4m3 holds: the conformance kit's definition, for the tests of every package."""

from __future__ import annotations

from tenon_plugin_sdk.conformance.truth.float8 import codes, edges, held_of

__all__ = ["codes", "edges", "held_of"]
