"""Smoke test of an installed Tenon, run by the clean environment's own interpreter, outside the checkout:

    smoke_installed.py CHECKPOINT --expect-platform NAME

The command line answers, the expected platform is the one that runs, and `LLM` and the server both generate.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 120


def tenon(*arguments: str) -> str:
    """Run the installed command; its standard output. Raises where it fails."""
    command = [str(Path(sys.executable).with_name("tenon")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode != 0:
        raise SystemExit(f"tenon {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def check_installed() -> None:
    """The modules come from this environment, not from a checkout."""
    import tenon_core

    assert tenon_core.__file__ is not None
    if not Path(tenon_core.__file__).is_relative_to(Path(sys.prefix)):
        raise SystemExit(f"tenon_core comes from {tenon_core.__file__}, outside of {sys.prefix}")


def check_commands(platform: str) -> None:
    """The commands that need no model."""
    if "serve" not in tenon("--help"):
        raise SystemExit("tenon --help does not name serve")
    for command in ("doctor", "plugins"):
        output = tenon(command)
        if platform not in output:
            raise SystemExit(f"tenon {command} does not name {platform}:\n{output}")


def check_offline(checkpoint: str) -> list[int]:
    """`LLM` generates, twice the same; returns the tokens."""
    from tenon_core import LLM, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    with LLM(checkpoint, max_num_seqs=4) as llm:
        first, second = (llm.generate("Hello", params)[0].outputs[0] for _ in range(2))
    tokens = list(first.token_ids)
    if len(tokens) != 16 or tokens != list(second.token_ids):
        raise SystemExit(f"LLM: {len(tokens)} tokens of 16, the same twice: {tokens == list(second.token_ids)}")
    return tokens


def check_server(checkpoint: str, expected: list[int]) -> None:
    """The server generates the tokens that `LLM` did."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).with_name("tenon")), "serve", checkpoint, "--port", str(port)]
    server = subprocess.Popen([*command, "--max-num-seqs", "4"])
    try:
        wait_until_healthy(server, port)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        connection.request("GET", "/v1/models")
        model = json.loads(connection.getresponse().read())["data"][0]["id"]
        body = {
            "model": model,
            "prompt": "Hello",
            "temperature": 0,
            "max_tokens": 16,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200 or answer["choices"][0].get("token_ids") != expected:
            raise SystemExit(f"the server answered {response.status}: {answer}; LLM had {expected}")
    finally:
        server.terminate()
        server.wait(LIMIT_S)


def wait_until_healthy(server: subprocess.Popen[bytes], port: int) -> None:
    """Return when /health answers 200; raises where the server ends or is too slow."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit(f"tenon serve ended with {server.returncode}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass  # not listening yet
        finally:
            connection.close()
        time.sleep(0.1)
    raise SystemExit(f"tenon serve was not healthy within {LIMIT_S} s")


def main() -> None:
    """Run all checks."""
    parser = argparse.ArgumentParser(description="Smoke test of an installed Tenon.")
    parser.add_argument("checkpoint")
    parser.add_argument("--expect-platform", required=True, choices=("reference", "cpu", "sim"))
    arguments = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)
    check_installed()
    check_commands(arguments.expect_platform)
    tokens = check_offline(arguments.checkpoint)
    check_server(arguments.checkpoint, tokens)
    print(f"installed Tenon generates on {arguments.expect_platform}: {tokens}")


if __name__ == "__main__":
    main()
