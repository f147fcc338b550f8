"""What `pytest --pyargs tenon_plugin_sdk.conformance --platform NAME` collects."""

from __future__ import annotations

from .suite import ConformanceSuite


class TestConformance(ConformanceSuite):
    """The platform that the command line names."""
