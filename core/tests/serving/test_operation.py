"""What operators see: the listener for scrapers, log lines as JSON, traces, and the dashboard's queries."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.semconv._incubating.attributes import error_attributes, gen_ai_attributes, http_attributes
from running_server import RunningServer, free_port, start_server

from tenon_core.observability.metrics import EngineMetrics
from tenon_core.serving.config import ServerConfig
from tenon_platforms.errors import ConfigError

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[3]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


# Every attribute's name that the conventions' own package knows.
CONVENTIONAL = {
    value
    for module in (error_attributes, gen_ai_attributes, http_attributes)
    for name, value in vars(module).items()
    if name.isupper() and isinstance(value, str)
}


class Collector:
    """An OTLP collector: keeps every span that it is sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    outer.resources.append(attributes(resource.resource.attributes))
                    outer.spans += [span for scope in resource.scope_spans for span in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *arguments: Any) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/v1/traces"


def attributes(pairs: Any) -> dict[str, Any]:
    return {one.key: plain(one.value) for one in pairs}


def plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(one) for one in value.array_value.values]
    return getattr(value, kind)


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()


def test_a_request_becomes_a_span(folder: Path, tmp_path: Path, collector: Collector) -> None:
    running = start_server(
        folder, tmp_path / "log", otlp_traces_endpoint=collector.url, environment={"TEST_LOG_FORMAT": "json"}
    )
    try:
        running.wait_healthy()
        with running.client() as client:
            parent = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "x-request-id": "mine"}
            body = {"prompt": "secret words", "max_tokens": 5, "temperature": 0.5, "seed": 3}
            assert client.post("/v1/completions", json=body, headers=parent).status_code == 200
            unsampled = {"traceparent": f"00-{'b' * 32}-00f067aa0ba902b7-00"}
            assert client.post("/v1/completions", json=body, headers=unsampled).status_code == 200
            chat = {"messages": [{"role": "user", "content": "secret"}], "max_tokens": 4, "stream": True, "n": 2}
            assert client.post("/v1/chat/completions", json=chat).status_code == 200
            assert client.post("/v1/completions", json={"prompt": []}).status_code == 400
            assert client.get("/v1/models").status_code == 200
            assert client.post("/v1/completions/" + "x" * 50, json={}).status_code == 404
    finally:
        assert running.stop() == 0
    spans = {span.name: span for span in collector.spans}
    assert len(collector.spans) == 4 and collector.resources[0]["service.name"] == "tenon"
    text = spans["text_completion fake"]
    assert text.trace_id.hex() == TRACE and text.parent_span_id.hex() == "00f067aa0ba902b7"
    found = attributes(text.attributes)
    expected = {
        "gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "tenon", "gen_ai.request.model": "fake",
        "gen_ai.request.max_tokens": 5, "gen_ai.request.temperature": 0.5, "gen_ai.request.seed": 3,
        "gen_ai.usage.input_tokens": 12, "gen_ai.usage.output_tokens": 5, "gen_ai.response.finish_reasons": ["length"],
        "http.response.status_code": 200, "tenon.request_id": "mine",
    }  # fmt: skip
    assert {name: found.get(name) for name in expected} == expected
    seconds = (text.end_time_unix_nano - text.start_time_unix_nano) / 1e9
    assert 0 < found["gen_ai.response.time_to_first_chunk"] <= seconds < 30
    assert found["gen_ai.request.stream"] is False and 0 < found["tenon.queued_seconds"] < seconds
    for span in collector.spans:
        unknown = {name for name in attributes(span.attributes) if name not in CONVENTIONAL}
        assert unknown <= {"tenon.request_id", "tenon.queued_seconds"}, unknown
    chat_span = attributes(spans["chat fake"].attributes)
    assert chat_span["gen_ai.request.stream"] is True
    assert chat_span["gen_ai.usage.output_tokens"] == 5 and chat_span["gen_ai.request.choice.count"] == 2
    assert attributes(spans["POST /v1/completions"].attributes)["http.response.status_code"] == 400
    assert "POST unknown" in spans, "a client's path is no name of a span"
    assert "secret" not in str(collector.spans), "what prompts say is not in a span"
    lines = [json.loads(line) for line in running.log.read_text().splitlines() if line.startswith("{")]
    (line,) = [one for one in lines if one.get("request_id") == "mine"]
    assert (line["trace_id"], line["status"], line["path"]) == (TRACE, 200, "/v1/completions")
    assert {one["logger"] for one in lines} >= {"tenon_core.serving.app", "tenon_core.serving.lifetime"}


def test_vectors_become_a_span(folder: Path, tmp_path: Path, collector: Collector) -> None:
    running = start_server(
        folder, tmp_path / "log", otlp_traces_endpoint=collector.url, environment={"FAKE_POOLING": "pool"}
    )
    try:
        running.wait_healthy()
        with running.client() as client:
            assert client.post("/v1/embeddings", json={"input": ["secret", "words"]}).status_code == 200
    finally:
        assert running.stop() == 0
    (span,) = collector.spans
    found = attributes(span.attributes)
    assert span.name == "embeddings fake" and found["gen_ai.operation.name"] == "embeddings"
    assert found["gen_ai.usage.input_tokens"] == 11 and "gen_ai.usage.output_tokens" not in found
    assert set(found) - CONVENTIONAL == {"tenon.request_id", "tenon.queued_seconds"}


def test_a_collector_that_is_away_harms_nobody(folder: Path, tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}/v1/traces"
    running = start_server(folder, tmp_path / "log", otlp_traces_endpoint=endpoint)
    try:
        running.wait_healthy()
        with running.client() as client:
            answer = client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 2})
            assert answer.json()["choices"][0]["text"] == "ab"
    finally:
        assert running.stop() == 0


@pytest.mark.parametrize("endpoint", ["", "localhost:4317", "grpc://x:1", "http://", "file:///etc"])
def test_a_wrong_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="otlp_traces_endpoint"):
        ServerConfig(otlp_traces_endpoint=endpoint).check()


def test_without_the_library_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenon_core.serving.extras.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        ServerConfig(otlp_traces_endpoint="http://127.0.0.1:4318/v1/traces").check()
    assert caught.value.remedy is not None and "tenon-core[otel]" in caught.value.remedy


def test_the_listener_for_scrapers(folder: Path, tmp_path: Path) -> None:
    port = free_port()
    running = start_server(folder, tmp_path / "log", metrics_port=port)
    own = f"http://127.0.0.1:{port}"
    try:
        running.wait_healthy()
        assert httpx.get(f"{running.url}/metrics").status_code == 401
        answer = httpx.get(f"{own}/metrics")
        assert answer.status_code == 200 and 'tenon:engine_up{model_name="fake"} 1.0' in answer.text
        assert httpx.get(f"{own}/health").json() == {"status": "ok"}
        for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/"), ("GET", "/engine")):
            assert httpx.request(method, own + path).status_code == 404
        assert httpx.post(f"{own}/metrics").status_code == 405
    finally:
        assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()


def test_a_taken_metrics_port_is_told(folder: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        running = start_server(folder, tmp_path / "log", metrics_port=taken.getsockname()[1])
        assert running.process.wait(60) == 2
    assert "cannot listen on" in running.log.read_text()


def test_ready_says_more_than_health(server: RunningServer, client: httpx.Client) -> None:
    assert client.get("/ready").json() == {"status": "ready", "model": "fake"}
    assert httpx.get(f"{server.url}/ready").status_code == 401


# the dashboard

METRIC = re.compile(r"\b(?:tenon|vllm):[a-z0-9_]+")


def existing() -> set[str]:
    """Every series name that a scrape can hold."""
    from fake_engine import FakeEngine

    metrics = EngineMetrics("m")
    metrics.take_snapshot(FakeEngine().stats())
    metrics.set_block_size(16)
    return set(re.findall(r"^([a-z]+:[a-z0-9_]+)", metrics.render()[0].decode(), re.MULTILINE))


def test_every_query_of_the_dashboard_names_a_metric() -> None:
    dashboard = json.loads((ROOT / "deploy" / "grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    names = existing()
    assert len(queries) > 25
    for query in queries:
        asked = METRIC.findall(query)
        assert asked and set(asked) <= names, query
        assert query.count("(") == query.count(")") and query.count("{") == query.count("}")
    shown = {re.sub(r"_(total|bucket|sum|count)$", "", name) for query in queries for name in METRIC.findall(query)}
    families = {one.name for one in EngineMetrics("m").registry.collect() if one.name.startswith("tenon:")}
    assert families <= shown, f"not on the dashboard: {families - shown}"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    assert "tenon:no_such_metric" not in names
