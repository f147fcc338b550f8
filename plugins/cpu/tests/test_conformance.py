"""The CPU platform conforms."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tenon_plugin_sdk.conformance import ConformanceSuite

pytestmark = pytest.mark.backend


class TestConformance(ConformanceSuite):
    """On one thread, as CI has no more to give."""

    platform = "cpu"
    options: ClassVar[dict[str, str]] = {"threads": "1"}
