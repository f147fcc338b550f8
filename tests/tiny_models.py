"""The conformance kit's tiny checkpoints, for the tests that cross packages."""

from __future__ import annotations

from tenon_plugin_sdk.conformance.models.tiny import FULL, SIZES, SLIDING, TINY, TinyModel, make_tiny

__all__ = ["FULL", "SIZES", "SLIDING", "TINY", "TinyModel", "make_tiny"]
