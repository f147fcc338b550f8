"""TLS, several keys, and the longest that a request may take."""

from __future__ import annotations

import json
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_server import RunningServer, free_port, start_server

from tenon_core.serving.config import ServerConfig
from tenon_platforms.errors import ConfigError

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(certificate, key) for localhost, made anew."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, *names, "-out", certificate, "-keyout", key], check=True, capture_output=True)
    return certificate, key


def wait_up(running: RunningServer, client: httpx.Client) -> None:
    deadline = time.monotonic() + 60
    while True:
        assert running.process.poll() is None and time.monotonic() < deadline, running.log.read_text()
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)


@pytest.mark.parametrize("count", [1, 2])
def test_tls_for_http_and_grpc(folder: Path, tmp_path: Path, pair: tuple[Path, Path], count: int) -> None:
    import grpc

    from tenon_core.serving.rpc import inference_pb2 as pb
    from tenon_core.serving.rpc import inference_pb2_grpc as stubs

    certificate, key = pair
    port = free_port()
    running = start_server(
        folder, tmp_path / "log", ssl_certfile=str(certificate), ssl_keyfile=str(key),
        api_key=["first-key", "second-key"], grpc_port=port, api_server_count=count,
    )  # fmt: skip
    try:
        trust = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(base_url=f"https://localhost:{running.port}", verify=trust, timeout=30) as client:
            wait_up(running, client)
            body = {"prompt": "abc", "max_tokens": 3}
            for one in ("first-key", "second-key"):
                answer = client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {one}"})
                assert answer.json()["choices"][0]["text"] == "abc"
            assert client.post("/v1/completions", json=body, headers={"x-api-key": "third-key"}).status_code == 401
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"https://localhost:{running.port}/health")  # a certificate that nobody vouches for
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://localhost:{running.port}/health")
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
            request = pb.GenerateRequest(text="abc", sampling=pb.Sampling(max_tokens=3))
            metadata = (("x-api-key", "second-key"),)
            assert (
                stubs.InferenceStub(channel).Generate(request, metadata=metadata, timeout=30).choices[0].text == "abc"
            )
    finally:
        assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()


@pytest.fixture(scope="module")
def hasty(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = start_server(
        folder, tmp_path_factory.mktemp("hasty") / "log", request_timeout=1.5, environment={"FAKE_STEP_SECONDS": "0.01"}
    )
    running.wait_healthy()
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()


def quiet(client: httpx.Client) -> bool:
    rows = client.get("/metrics").text.splitlines()
    return next(one for one in rows if one.startswith("tenon:num_requests_running")).endswith(" 0.0")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_request_has_only_so_long(hasty: RunningServer, path: str) -> None:
    prompt: dict[str, Any] = {"prompt": "x"} if "chat" not in path else {"messages": [{"role": "user", "content": "x"}]}
    long = {**prompt, "max_tokens": 4000, "ignore_eos": True}
    with hasty.client() as client:
        began = time.monotonic()
        answer = client.post(path, json=long)
        assert answer.status_code == 504 and answer.json()["error"]["type"] == "timeout_error"
        assert "longer than 1.5 s" in answer.json()["error"]["message"] and time.monotonic() - began < 10
        text = client.post(path, json={**long, "stream": True}).text
        assert text.rstrip().endswith("data: [DONE]") and "longer than 1.5 s" in text.split("data: ")[-2]
        assert client.post(path, json={**prompt, "max_tokens": 2}).status_code == 200
        deadline = time.monotonic() + 10
        while not quiet(client):
            assert time.monotonic() < deadline, "what was given up still runs"
            time.sleep(0.1)


def test_a_stream_ends_in_the_shape_of_its_protocol(hasty: RunningServer) -> None:
    endless = {"stream": True, "ignore_eos": True}
    with hasty.client() as client:
        ask = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4000, **endless}
        *_, name, data = client.post("/v1/messages", json=ask).text.rstrip().splitlines()
        assert name == "event: error" and json.loads(data[6:])["error"]["type"] == "timeout_error"
        text = client.post("/v1/responses", json={"input": "x", **endless}).text
        *_, name, data = text.rstrip().splitlines()
        assert name == "event: response.failed" and "[DONE]" not in text and "event: error" not in text
        response = json.loads(data[6:])["response"]
        assert response["status"] == "failed" and "longer than 1.5 s" in response["error"]["message"]
        assert client.get(f"/v1/responses/{response['id']}").json()["status"] == "failed"


def test_a_response_has_only_so_long(hasty: RunningServer) -> None:
    """Whole, and in the background, where its request has long ended."""
    with hasty.client() as client:
        answer = client.post("/v1/responses", json={"input": "x", "ignore_eos": True})
        assert answer.status_code == 504 and answer.json()["error"]["type"] == "timeout_error"
        response = client.post("/v1/responses", json={"input": "x", "ignore_eos": True, "background": True}).json()
        deadline = time.monotonic() + 10
        while response["status"] == "in_progress":
            assert time.monotonic() < deadline, "it runs on and on"
            time.sleep(0.1)
            response = client.get(f"/v1/responses/{response['id']}").json()
        assert response["status"] == "failed" and "longer than 1.5 s" in response["error"]["message"]
        assert quiet(client)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_wrong_timeout_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="request_timeout"):
        ServerConfig(request_timeout=seconds).check()
