"""What `pytest --pyargs tenon_plugin_sdk.conformance.replay --platform NAME --replay FILE` collects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .plugin import Replay


class TestReplay:
    """The recorded cases."""

    def test_equals_float64(self, replayed: Replay, number: int) -> None:
        """One case."""
        from ..registry import NotApplicableError
        from .checks import replay

        try:
            replay(replayed.subject, replayed.file.case(number))
        except NotApplicableError as error:
            pytest.skip(str(error))
