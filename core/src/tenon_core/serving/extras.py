"""Is what an option needs installed? Asked before anything starts, and without importing it."""

from __future__ import annotations

from importlib.util import find_spec
from urllib.parse import urlsplit

from tenon_platforms.errors import ConfigError

EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


def check_endpoint(endpoint: str) -> None:
    """Raise `ConfigError` for an address that is none, or where the library is missing. Imports nothing of it."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"otlp_traces_endpoint is {endpoint!r:.200}: traces are sent as OTLP over HTTP",
            remedy="give a collector's address such as http://127.0.0.1:4318/v1/traces",
        )
    if not _has("opentelemetry.sdk.trace", EXPORTER):
        raise ConfigError(
            "otlp_traces_endpoint is set, but OpenTelemetry is not installed",
            remedy="run: pip install tenon-core[otel]",
        )


def check_grpc() -> None:
    """Raise `ConfigError` where gRPC is not installed."""
    if not _has("grpc", "grpc_health.v1", "grpc_reflection.v1alpha", "google.protobuf"):
        raise ConfigError("grpc_port is set, but gRPC is not installed", remedy="run: pip install tenon-core[grpc]")


def _has(*modules: str) -> bool:
    try:
        return all(find_spec(module) is not None for module in modules)
    except ModuleNotFoundError:  # a parent package is missing
        return False
