"""Fixtures of the core's tests."""

from __future__ import annotations

from real_model import smollm2_path

__all__ = ["smollm2_path"]
