"""The CPU platform conforms."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tenon_plugin_sdk.conformance import ConformanceSuite

pytestmark = pytest.mark.backend


class TestConformance(ConformanceSuite):
    """Torch's kernels, on one thread, as CI has no more to give."""

    platform = "cpu"
    options: ClassVar[dict[str, str]] = {"threads": "1", "kernels": "torch"}


class TestNativeExecution(ConformanceSuite):
    """The native library's steps: the device, and replays of the tape."""

    platform = "cpu"
    options: ClassVar[dict[str, str]] = {"threads": "1", "kernels": "auto"}
    level = "L1,L3"
