"""`ServerConfig`: what an operator can ask of the HTTP server. Flags are generated from it, as from `EngineConfig`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from tenon_core.config import flag
from tenon_core.hookspecs import REASONING_PARSERS, TOOL_PARSERS
from tenon_platforms.errors import ConfigError

from .extras import check_endpoint, check_grpc
from .parsers.names import check_name

MIN_KEY_LENGTH = 1
MAX_KEY_LENGTH = 512
MAX_API_SERVERS = 64


def check_tls(certfile: str, keyfile: str) -> None:
    """Raise `ConfigError` where these are no certificate and its key, or the key wants a password."""
    import ssl

    try:
        # without an answer of our own, a password would be asked for on the terminal
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile, password=lambda: "")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(
            f"the TLS certificate {certfile} with the key {keyfile} cannot be used: {error}",
            remedy="pass --ssl-certfile a PEM certificate chain and --ssl-keyfile its PEM key, without a password",
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Address, keys, limits of the server."""

    host: str = flag("127.0.0.1", "address to listen on; only this machine unless said otherwise")
    port: int = flag(8000, "TCP port to listen on")
    api_key: tuple[str, ...] = flag(
        (), "key that clients must send; may be repeated (the environment keeps it out of process lists)",
        env="TENON_API_KEY",
    )  # fmt: skip
    admin_api_key: tuple[str, ...] = flag(
        (), "key of those who may change the server (sleep), which no other key may; may be repeated",
        env="TENON_ADMIN_API_KEY",
    )  # fmt: skip
    insecure_no_key: bool = flag(
        False, "listen on an address that others reach although no key is set: everybody there may use the server"
    )
    served_model_name: tuple[str, ...] = flag((), "name of the model for clients; may be repeated; default: as given")
    chat_template: str | None = flag(None, "file with a chat template, instead of the model's own")
    tool_call_parser: str = flag(
        "auto", "how the model writes tool calls (tenon.tool_parsers); auto: by its chat template; none: not at all"
    )
    enable_auto_tool_choice: bool = flag(True, "let the model call tools by itself; refused to clients if off")
    reasoning_parser: str = flag(
        "auto", "how the model marks reasoning (tenon.reasoning_parsers); auto: by its chat template; none: not at all"
    )
    allowed_origins: tuple[str, ...] = flag((), "browser origin that may call the server; may be repeated")
    allowed_hosts: tuple[str, ...] = flag((), "further Host name by which browsers may reach it; may be repeated")
    ssl_certfile: str | None = flag(None, "TLS certificate, in PEM form")
    ssl_keyfile: str | None = flag(None, "TLS private key, in PEM form")
    max_body_bytes: int = flag(32 * 2**20, "greatest size of a request's body")
    header_timeout: float = flag(10.0, "seconds in which a request's headers must arrive")
    body_timeout: float = flag(60.0, "seconds in which a request's body must arrive")
    keep_alive_timeout: int = flag(5, "seconds after which an idle connection is closed")
    request_timeout: float = flag(0.0, "seconds after which a request is ended, whatever it does; 0: never")
    max_connections: int = flag(4096, "greatest number of connections; more are answered 503")
    drain_seconds: int = flag(30, "seconds that running requests have to finish when the server is told to stop")
    stall_seconds: float = flag(
        4.0,
        "seconds of silence, beyond what a step's tokens take, after which the engine counts as stalled and"
        " /health says so",
    )
    stall_kill_seconds: float = flag(60.0, "seconds of such silence after which the engine is ended and started again")
    max_stored_responses: int = flag(
        1000, "responses (POST /v1/responses) kept in memory for each key, the least used go first; 0: none"
    )
    stored_responses_bytes: int = flag(256 * 2**20, "greatest size of the responses that are kept for each key")
    stream_interval: int = flag(1, "tokens between two pieces of a stream")
    api_server_count: int = flag(1, "processes that serve HTTP in front of the one engine")
    grpc_port: int | None = flag(None, "TCP port on which gRPC is served beside HTTP, with the same keys (extra grpc)")
    metrics_port: int | None = flag(None, "TCP port on which /metrics and /health are answered too, without a key")
    metrics_host: str = flag("127.0.0.1", "address of that port")
    otlp_traces_endpoint: str | None = flag(None, "OpenTelemetry collector for traces: http://HOST:4318/v1/traces")
    playground: bool = flag(True, "serve the playground, a page to try the model with, at /")
    disable_access_log: bool = flag(False, "no log line for each request")

    def check(self) -> None:
        """Raise `ConfigError` for values that cannot be."""
        if not self.host.strip() or not self.metrics_host.strip():
            raise ConfigError(
                "host is empty, which would listen on every address",
                remedy="leave it out for this machine only, or say --host 0.0.0.0",
            )
        for name in ("port", "metrics_port", "grpc_port"):
            if getattr(self, name) is not None and not 0 <= getattr(self, name) <= 65535:
                raise ConfigError(f"{name} is {getattr(self, name)}: it lies between 0 and 65535")
        for name in ("max_body_bytes", "keep_alive_timeout", "max_connections", "stream_interval"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be at least 1")
        for name in ("header_timeout", "body_timeout", "stall_seconds", "stall_kill_seconds"):
            if not 0 < getattr(self, name) < 86400:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be more than 0 and less than a day")
        if not 0 <= self.request_timeout < 7 * 86400:
            raise ConfigError(
                f"request_timeout is {self.request_timeout}: it must be 0, or seconds of less than a week"
            )
        for name in ("drain_seconds", "max_stored_responses", "stored_responses_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must not be negative")
        if self.stall_kill_seconds < self.stall_seconds:
            raise ConfigError("stall_kill_seconds is less than stall_seconds")
        if self.otlp_traces_endpoint is not None:
            check_endpoint(self.otlp_traces_endpoint)
        if self.grpc_port is not None:
            check_grpc()
        if not 1 <= self.api_server_count <= MAX_API_SERVERS:
            raise ConfigError(f"api_server_count is {self.api_server_count}: it lies between 1 and {MAX_API_SERVERS}")
        if self.api_server_count > 1 and self.grpc_port == 0:
            raise ConfigError("several API processes cannot each take any free gRPC port: name one with --grpc-port")
        if not self.is_loopback and not self.api_key and not self.insecure_no_key:
            raise ConfigError(
                f"host is {self.host}, which others can reach, and no key is set",
                remedy="set TENON_API_KEY (or pass --api-key), or say --insecure-no-key where something in front checks"
                " who calls",
            )
        self._check_texts()
        check_name(TOOL_PARSERS, self.tool_call_parser)
        check_name(REASONING_PARSERS, self.reasoning_parser)

    def _check_texts(self) -> None:
        if shared := set(self.api_key) & set(self.admin_api_key):
            raise ConfigError(
                f"{len(shared)} of the admin keys is a client's key too: every client could change the server",
                remedy="make another one for --admin-api-key",
            )
        for place, key in enumerate((*self.api_key, *self.admin_api_key)):
            printable = key.isascii() and key.isprintable() and " " not in key
            if not printable or not MIN_KEY_LENGTH <= len(key) <= MAX_KEY_LENGTH:
                raise ConfigError(
                    f"api key {place + 1} is empty, too long, or has characters beyond printable ASCII",
                    remedy='make one with: python -c "import secrets; print(secrets.token_urlsafe())"',
                )
        for origin in self.allowed_origins:
            if origin == "*" or "://" not in origin:
                raise ConfigError(
                    f"allowed origin {origin!r}: expected one like https://example.net (a wildcard would let any page"
                    " in a browser use this server)"
                )
        for name in self.served_model_name:
            if not name or not name.isprintable() or len(name) > 256:
                raise ConfigError(f"served model name {name!r:.80} must be a printable text of at most 256 characters")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ConfigError("--ssl-certfile and --ssl-keyfile belong together: give both")
        for path in (self.ssl_certfile, self.ssl_keyfile):
            if path is not None and not Path(path).is_file():
                raise ConfigError(f"TLS file {path} does not exist")
        if self.ssl_certfile is not None and self.ssl_keyfile is not None:
            check_tls(self.ssl_certfile, self.ssl_keyfile)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def url(self) -> str:
        """Where clients find it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.ssl_certfile else 'http'}://{host}:{self.port}"
