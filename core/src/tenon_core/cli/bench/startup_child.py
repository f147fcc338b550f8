"""The child of `tenon bench startup`: starts an engine, generates one token, prints seconds by phase as JSON.

Standard input: the engine's configuration. Argument: the parent's monotonic clock just before this process was made.
"""

from __future__ import annotations

import json
import os
import sys
import time

from tenon_core.config import EngineConfig
from tenon_platforms.errors import TenonError


def main() -> int:
    """Start, generate, tell."""
    launched, running = float(sys.argv[1]), time.monotonic()
    answer_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # standard output is for the answer alone
    flat = {name: value for section in json.load(sys.stdin).values() for name, value in section.items()}
    try:
        phases = measure(EngineConfig.from_flat(**flat), launched, running)
    except TenonError as error:
        json.dump({"kind": type(error).__name__, "message": error.message, "remedy": error.remedy}, answer_to)
        answer_to.close()
        return 1
    json.dump(phases, answer_to)
    answer_to.close()
    return 0


def measure(config: EngineConfig, launched: float, running: float) -> dict[str, float]:
    """Seconds by phase, in order, and their total: from the process's launch to the first token."""
    from tenon_core.engine.start import start_engine

    from .first_token import first_token

    imported = time.monotonic()
    phases = {"interpreter": running - launched, "imports": imported - running}
    engine = start_engine(config, on_phase=phases.__setitem__)
    phases["other"] = time.monotonic() - launched - sum(phases.values())
    asked = time.monotonic()
    first_token(engine)
    now = time.monotonic()
    engine.shutdown()
    return {**phases, "one more request's first token": now - asked, "total": now - launched}


if __name__ == "__main__":
    sys.exit(main())
