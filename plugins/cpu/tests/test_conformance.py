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


class TestNativeConformance(ConformanceSuite):
    """The native library's kernels, on the tape where a step is one; torch's where it was not built."""

    platform = "cpu"
    options: ClassVar[dict[str, str]] = {"threads": "1", "kernels": "auto"}
