"""The kernels, interpreted, against float64: ragged batches, shuffled and shared blocks, poison wherever none may look."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_cases import SMALL, attend, check, make_case, reference_of, backend_of, spec_of, truth
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenon_platforms.dtypes import DType

pytestmark = pytest.mark.unit

FIELDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"sliding_window": 19},
    "window of one": {"sliding_window": 1},
    "soft cap": {"soft_cap": 2.0},
    "sinks": {"sinks": True},
    "all": {"sliding_window": 33, "soft_cap": 5.0, "sinks": True},
}
DECODES = [(1, 1), (1, 16), (1, 17), (1, 70), (1, 131)]
MIXED = [(1, 40), (1, 3), (5, 5), (30, 61), (2, 100), (17, 17)]


@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize("rows", [DECODES, MIXED], ids=["decode", "mixed"])
def test_against_float64(rows: list[tuple[int, int]], fields: str) -> None:
    check(spec_of(**FIELDS[fields]), rows, 16)
