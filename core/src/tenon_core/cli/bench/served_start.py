"""Times `tenon serve` from process start to the first token over HTTP."""

from __future__ import annotations

import signal
import socket
import subprocess
import tempfile
import time

import httpx

from tenon_core.children import module_command
from tenon_core.cli.flags import ENGINE_SECTIONS, flags_of
from tenon_core.config import EngineConfig
from tenon_platforms.errors import DeviceError

HOST = "127.0.0.1"
POLL_S = 0.05
STOP_S = 15.0


def time_server(config: EngineConfig, timeout: float) -> dict[str, float]:
    """Seconds until /health answers 200, of the first request, and in all. Raises `DeviceError`."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    command = module_command("tenon_core.cli.main", "serve", *arguments_of(config), "--disable-access-log")
    with tempfile.TemporaryFile() as told:
        started = time.monotonic()
        server = subprocess.Popen([*command, "--host", HOST, "--port", str(port)], stdout=told, stderr=told)
        try:
            _wait(server, f"http://{HOST}:{port}", started + timeout)
            ready = time.monotonic()
            _ask(f"http://{HOST}:{port}", timeout)
            done = time.monotonic()
        except DeviceError as error:
            told.seek(0)
            lines = told.read().decode("utf-8", "replace").strip().splitlines()[-15:]
            raise DeviceError("\n".join((error.message, *lines))) from error
        finally:
            _stop(server)
    return {"ready": ready - started, "first request": done - ready, "total": done - started}


def arguments_of(config: EngineConfig) -> list[str]:
    """The command line that gives this configuration: flags that differ from their defaults."""
    values, arguments = config.flat(), []
    for flag in (flag for kind in ENGINE_SECTIONS for flag in flags_of(kind)):
        value = values[flag.name]
        if value == flag.default:
            continue
        if flag.type is bool:
            arguments.append(flag.names[0] if value else flag.negatives[0])
        elif flag.multiple:
            arguments += [f"{flag.names[0]}={item}" for item in value]
        else:
            arguments.append(f"{flag.names[0]}={value}")
    return arguments


def _wait(server: subprocess.Popen[bytes], url: str, deadline: float) -> None:
    with httpx.Client(timeout=5) as client:
        while time.monotonic() < deadline:
            if server.poll() is not None:
                raise DeviceError(f"tenon serve ended with exit code {server.returncode}:")
            try:
                if client.get(f"{url}/health").status_code == 200:
                    return
            except httpx.HTTPError:
                pass  # not listening yet
            time.sleep(POLL_S)
    raise DeviceError("tenon serve was not ready in time:", remedy="pass a longer --timeout")


def _ask(url: str, timeout: float) -> None:
    with httpx.Client(timeout=timeout) as client:
        model = client.get(f"{url}/v1/models").json()["data"][0]["id"]
        body = {"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
        answer = client.post(f"{url}/v1/completions", json=body)
        if answer.status_code != 200:
            raise DeviceError(f"the first request failed: HTTP {answer.status_code}: {answer.text[:300]}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
