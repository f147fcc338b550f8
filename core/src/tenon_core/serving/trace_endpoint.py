"""Is this a collector's address, and is what speaks to it installed? Asked before anything starts."""

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
    try:
        has_library = find_spec("opentelemetry.sdk.trace") is not None and find_spec(EXPORTER) is not None
    except ModuleNotFoundError:  # a parent package is missing
        has_library = False
    if not has_library:
        raise ConfigError(
            "otlp_traces_endpoint is set, but OpenTelemetry is not installed",
            remedy="run: pip install tenon-core[otel]",
        )
