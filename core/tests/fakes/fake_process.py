"""The engine process with a `FakeEngine` in place of the real one; no torch."""

from __future__ import annotations

import sys
import types
from typing import Any

from fake_engine import from_environment

from tenon_core.engine.process import main


def start_engine(config: Any, *, on_phase: Any = None) -> Any:
    if on_phase is not None:
        on_phase("fake", 0.0)
    if config.model.model.endswith("broken"):
        from tenon_platforms.errors import ConfigError

        raise ConfigError("the fake model is broken", remedy="use another one")
    return from_environment()


if __name__ == "__main__":
    start = types.ModuleType("tenon_core.engine.start")
    start.start_engine = start_engine  # type: ignore[attr-defined]
    sys.modules["tenon_core.engine.start"] = start
    sys.modules["torch"] = None  # type: ignore[assignment]
    sys.exit(main())
