"""What a platform says of its device must fit together before an engine is built on it."""

from __future__ import annotations

import pytest

from tenon_core.engine.assembly import Sockets
from tenon_platforms.device import Device
from tenon_platforms.errors import PluginError
from tenon_platforms.platform import Platform

pytestmark = pytest.mark.unit


class Contradicting(Platform):
    """Its device shares the host's memory and is asynchronous."""

    name = "contradicting"
    contract = ">=0.1,<0.2"

    def device(self, index: int = 0) -> Device:
        return Device(shares_host_memory=True, is_async=True)


def test_a_device_in_the_hosts_memory_is_not_asynchronous() -> None:
    with pytest.raises(PluginError, match=r"contradicting.*shares_host_memory.*is_async") as raised:
        Sockets.open(Contradicting())
    assert "leaves `shares_host_memory` at False" in (raised.value.remedy or "")
