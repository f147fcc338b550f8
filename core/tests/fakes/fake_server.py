"""`tenon serve` as it is, over a fake engine process: `fake_server.py FOLDER JSON-of-ServerConfig`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tenon_core.client import engine_process
from tenon_core.config import EngineConfig
from tenon_core.observability.log import setup_logging
from tenon_core.serving.config import ServerConfig
from tenon_core.serving.server import run_server
from tenon_platforms.errors import TenonError

if __name__ == "__main__":
    setup_logging("info", format=os.environ.get("TEST_LOG_FORMAT", "text"))
    command = (sys.executable, str(Path(__file__).with_name("fake_process.py")))
    original = engine_process.EngineProcess.__init__
    engine_process.EngineProcess.__init__ = lambda self, _=(): original(self, command)  # type: ignore[method-assign,misc]
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(sys.argv[2]).items()}
    try:
        engine = json.loads(os.environ.get("TEST_ENGINE_OPTIONS", "{}"))
        code = run_server(EngineConfig.from_flat(model=sys.argv[1], **engine), ServerConfig(**options))
    except TenonError as error:
        print(f"error: {error.message}", file=sys.stderr)
        code = 2
    assert "torch" not in sys.modules, "the API process imported torch"
    sys.exit(code)
