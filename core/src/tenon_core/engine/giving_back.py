"""What a start took of a device, given back where it fails: the next one in this process finds it whole."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType

LOG = logging.getLogger(__name__)


class GivenBack:
    """As a context: `give` is called where the block raises. What `give` raises itself is logged, not told instead."""

    def __init__(self, give: Callable[[], None]) -> None:
        self.give = give  # may be replaced once there is more to give back

    def __enter__(self) -> GivenBack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is None:
            return
        try:
            self.give()
        except Exception as second:  # noqa: BLE001 - the first error is the one to tell
            LOG.warning("giving the device back failed: %s", second)
