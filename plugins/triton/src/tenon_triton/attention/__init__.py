"""Paged grouped-query attention as one family of kernels, behind the contract's `AttentionBackend`."""

from __future__ import annotations
