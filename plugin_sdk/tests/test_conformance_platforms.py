"""The platforms of this repository conform: the reference, and the simulated device in all its characters."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tenon_plugin_sdk.conformance import ConformanceSuite

pytestmark = pytest.mark.backend


class TestReference(ConformanceSuite):
    """Plain torch."""

    platform = "reference"


class TestStaticSim(ConformanceSuite):
    """A compiling device: ops and executables."""

    platform = "sim"
    level = "L3"


class TestDynamicSim(ConformanceSuite):
    """A capturing device; its kernels are those of the compiling one."""

    platform = "sim"
    options: ClassVar[dict[str, str]] = {"character": "dynamic"}
    level = "L1,L3"


class TestMinimalSim(ConformanceSuite):
    """Nothing but a device; its kernels are the reference's."""

    platform = "sim"
    options: ClassVar[dict[str, str]] = {"character": "minimal"}
    level = "L1,L3"


@pytest.mark.full
class TestEnginesOnSim(ConformanceSuite):
    """Whole engines on the capturing device, which queues, and two ranks: every start captures a lattice."""

    platform = "sim"
    options: ClassVar[dict[str, str]] = {"character": "dynamic", "devices": "2"}
    level = "L4,L5,L6,L7"


@pytest.mark.full
class TestEnginesOnStaticSim(TestEnginesOnSim):
    """As above, on the compiling device."""

    options: ClassVar[dict[str, str]] = {"character": "static", "devices": "2"}


@pytest.mark.full
class TestEnginesOnMinimalSim(TestEnginesOnSim):
    """As above, on nothing but a device."""

    options: ClassVar[dict[str, str]] = {"character": "minimal", "devices": "2"}
