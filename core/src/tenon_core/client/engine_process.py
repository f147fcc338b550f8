"""The engine's process: its command, its private folder, its link's secret and its order.

A server spawns it before it imports what it needs itself, so this module must not import much: the engine waits.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from tenon_core.children import module_command
from tenon_core.config import EngineConfig
from tenon_core.engine.wire import SECRET_BYTES, StartOrder
from tenon_core.observability.log import current_format

from .private_folder import PrivateFolder

ENGINE_COMMAND = tuple(module_command("tenon_core.engine.process"))


class EngineProcess:
    """The subprocess, its private folder and the link's secret."""

    def __init__(self, command: Sequence[str] = ENGINE_COMMAND) -> None:
        self.folder = PrivateFolder()
        self.address = f"ipc://{self.folder.socket}"
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno() if _has_descriptor() else subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C in the terminal is for the parent
        )

    def order(self, config: EngineConfig, *, log_level: str = "info") -> None:
        """Tell it what to run. A process that has died already is found by its supervisor."""
        assert self._process.stdin is not None
        order = StartOrder(
            config=config.flat(), address=self.address, secret=self.secret.hex(), log_level=log_level,
            log_format=current_format(),
        )  # fmt: skip
        with suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """End it at once."""
        with suppress(ProcessLookupError):
            self._process.kill()

    def close(self, *, patience: float = 5.0) -> None:
        """End it, in order if it can, and remove its folder."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        self.folder.remove()


def _has_descriptor() -> bool:
    try:
        return sys.stderr.fileno() >= 0
    except (OSError, ValueError, AttributeError):  # replaced or closed
        return False
