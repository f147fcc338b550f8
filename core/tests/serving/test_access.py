"""T01 to T06 at the HTTP server: keys, hosts, request targets, sockets."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import httpx
import psutil
import pytest
from running_server import KEY, RunningServer, start_server

from tenon_core.observability.metrics import EngineMetrics
from tenon_core.serving import playground
from tenon_core.serving.access import GuardedRoute, NoKeys
from tenon_core.serving.app import ADMIN, TABLE, guarded_routes, make_app, routes
from tenon_core.serving.config import ServerConfig
from tenon_core.serving.services import Services
from tenon_platforms.errors import ConfigError

pytestmark = pytest.mark.e2e
PAGE = {"GET /", *(f"GET /playground/{name}" for name in playground.ASSETS)}
PUBLIC = {"GET /health", *PAGE}  # the written allow-list
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
ALIASES = (
    "/docs", "/redoc", "/openapi.json", "/v1", "/score", "/rerank", "/invocations", "/ping", "/tokenizer_info",
    "/v1/embeddings", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/reset_prefix_cache", "/sleep", "/wake_up",
    "/update_weights", "/start_profile", "/pause", "/collective_rpc", "/server_info", "/health/",
    "/HEALTH", "/v1/models/", "/metrics/", "/%2e%2e/metrics", "/v1/../metrics", "/health/../metrics",
)  # fmt: skip


def test_only_the_allow_list_is_public() -> None:
    assert {f"{method} {path}" for method, path, _, is_public in TABLE if is_public} == PUBLIC
    for has_sleep in (False, True):
        services = Services(
            config=ServerConfig(api_key=("k",)), model_names=("m",), metrics=EngineMetrics("m"),
            state=lambda: "starting", has_sleep=has_sleep,
        )  # fmt: skip
        made = guarded_routes(make_app(services))
        assert len(made) == len(TABLE) + len(ADMIN) * has_sleep
        assert all(isinstance(route, GuardedRoute) for route in made)
        assert {route.path for route in made if isinstance(route.keys, NoKeys)} == (
            {path for _, path, _ in ADMIN} if has_sleep else set()
        )
    assert len(routes()) == len(TABLE) + len(ADMIN)


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}], ids=str)
def test_nothing_is_answered_without_a_key(server: RunningServer, headers: dict[str, str]) -> None:
    paths = [path.replace("{name:path}", "fake") for _, path, _, _ in TABLE]
    with httpx.Client(base_url=server.url, headers=headers) as client:
        for path in (*paths, *ALIASES):
            for method in METHODS:
                status = client.request(method, path).status_code
                if f"GET {path}" in PUBLIC:
                    assert status in ((200,) if method in ("GET", "HEAD") else (405,)), (method, status)
                else:
                    assert status == 401, (method, path, status)


@pytest.mark.parametrize(
    "headers",
    [
        [("Authorization", "")],
        [("Authorization", "Bearer")],
        [("Authorization", f"Bearer {KEY[:-1]}")],
        [("Authorization", f"Bearer {KEY}x")],
        [("Authorization", f"Basic {KEY}")],
        [("Authorization", KEY)],
        [("Authorization", f"Bearer {KEY}"), ("Authorization", f"Bearer {KEY}")],
        [("Authorization", f"Bearer {KEY}"), ("x-api-key", "wrong")],
        [("Authorization", "Bearer wrong"), ("x-api-key", KEY)],
        [("x-api-key", f"{KEY}, {KEY}")],
        [("Authorization", "Bearer " + "k" * 5000)],
        [("Authorization", "Bearer correct-horse-batter\u00ff".encode("latin-1").decode("latin-1"))],
    ],
    ids=lambda headers: str(headers)[:60],
)
def test_keys_that_are_nearly_right(server: RunningServer, headers: list[tuple[str, str]]) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    assert httpx.get(f"{server.url}/v1/models", headers=raw).status_code == 401


def test_both_ways_to_send_a_key(server: RunningServer) -> None:
    for headers in ({"authorization": f"bearer {KEY}"}, {"x-api-key": KEY}):
        assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200


def raw(server: RunningServer, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as link:
        link.sendall(data)
        answer = b""
        try:
            while piece := link.recv(65536):
                answer += piece
        except (ConnectionResetError, TimeoutError):
            pass
        return answer


@pytest.mark.parametrize(
    "key", [KEY.encode() + b"\0", b"\0" + KEY.encode(), KEY.encode() + b"\xff", b"\xe9" * 20, KEY[:5].encode() + b"\0"]
)
def test_keys_with_odd_bytes(server: RunningServer, key: bytes) -> None:
    """What no HTTP library would send. A NUL is refused by the HTTP parser, before the key is looked at."""
    for header in (b"Authorization: Bearer " + key, b"x-api-key: " + key):
        answer = raw(
            server, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\nConnection: close\r\n\r\n"
        )
        assert answer[:12] == (b"HTTP/1.1 400" if b"\0" in key else b"HTTP/1.1 401"), answer[:100]


@pytest.mark.parametrize("host", [b"a/b", b"a?b", b"a#b", b"u@h", b"a b", b"", b"[::1", b"h:99999999", b"x\x7fy"])
def test_a_malformed_host(server: RunningServer, host: bytes) -> None:
    answer = raw(
        server,
        b"GET /v1/models HTTP/1.1\r\nHost: " + host + b"\r\nAuthorization: Bearer " + KEY.encode()
        + b"\r\nConnection: close\r\n\r\n",
    )  # fmt: skip
    assert answer.startswith(b"HTTP/1.1 400"), answer[:100]


@pytest.mark.parametrize(
    "target",
    [
        b"http://127.0.0.1/v1/models",
        b"http://127.0.0.1/health/../v1/models",
        b"v1/models",
        b"//v1/models",
        b"//health",
        b"/health%2f..%2fv1/models",
        b"/v1/models?/health",
        b"/v1/models#/health",
        b"/v1/models;/health",
        b"*",
    ],
)
def test_odd_request_targets(server: RunningServer, target: bytes) -> None:
    answer = raw(
        server,
        b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-Prefix: /health\r\nX-Original-URL: /health\r\n"
        b"Forwarded: host=/health\r\nConnection: close\r\n\r\n",
    )
    assert answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 401", b"HTTP/1.1 404"), answer[:100]


def test_a_browser_by_a_foreign_name(server: RunningServer) -> None:
    with server.client() as client:
        for host, origin, status in (
            ("evil.example", "http://evil.example", 403),
            ("evil.example", None, 200),
            ("localhost", "http://localhost:3000", 200),
            ("127.0.0.1:1", "http://x", 200),
            ("LOCALHOST.", "http://x", 200),
        ):
            headers = {"host": host, **({"origin": origin} if origin else {})}
            answer = client.get("/v1/models", headers=headers)
            assert answer.status_code == status, (host, origin)
            assert "access-control-allow-origin" not in answer.headers


CLIENTS_HEADERS = (  # of OpenAI's and Anthropic's libraries in a browser, and of one that is traced
    "authorization,content-type,openai-organization,x-stainless-lang,x-stainless-retry-count",
    "anthropic-dangerous-direct-browser-access,anthropic-version,content-type,x-api-key",
    "authorization,traceparent",
)


def test_allowed_origins(folder: Path, tmp_path: Path) -> None:
    running = start_server(folder, tmp_path / "log", allowed_origins=["https://good.example"])
    try:
        running.wait_healthy()
        asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        good = httpx.options(f"{running.url}/v1/completions", headers={"origin": "https://good.example", **asked})
        assert good.status_code == 200
        assert good.headers["access-control-allow-origin"] == "https://good.example"
        assert "access-control-allow-credentials" not in good.headers
        for names in CLIENTS_HEADERS:
            sent = {"origin": "https://good.example", **asked, "access-control-request-headers": names}
            good = httpx.options(f"{running.url}/v1/completions", headers=sent)
            assert good.status_code == 200 and good.headers["access-control-allow-headers"] == names
        shown = httpx.get(f"{running.url}/health", headers={"origin": "https://good.example"})
        exposed = shown.headers["access-control-expose-headers"]
        assert {"x-request-id", "request-id"} <= set(exposed.split(", ")) & set(shown.headers)
        bad = httpx.options(f"{running.url}/v1/completions", headers={"origin": "https://bad.example", **asked})
        assert bad.status_code == 400 and "access-control-allow-origin" not in bad.headers
    finally:
        assert running.stop() == 0


def test_a_simple_form_post_does_nothing(client: httpx.Client) -> None:
    """What a hostile page can send without asking first."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        answer = client.post("/v1/completions", content=b'{"prompt":"x"}', headers={"content-type": kind})
        assert answer.status_code == 415


def test_the_sockets_of_the_process_tree(server: RunningServer) -> None:
    parent = psutil.Process(server.process.pid)
    tree = [parent, *parent.children(recursive=True)]
    tcp = {(one.laddr.ip, one.laddr.port) for p in tree for one in p.net_connections("tcp") if one.status == "LISTEN"}
    assert tcp == {("127.0.0.1", server.port)}
    assert not [one for p in tree for one in p.net_connections("udp")]
    named = {one.laddr for p in tree for one in p.net_connections("unix") if one.laddr}
    assert named, "the engine's socket is not there"
    for path in map(Path, named):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "options",
    [
        {"port": -1},
        {"port": 65536},
        {"api_key": ("",)},
        {"api_key": ("a b",)},
        {"api_key": ("\u00e9",)},
        {"allowed_origins": ("*",)},
        {"ssl_certfile": "x"},
        {"stream_interval": 0},
        {"stall_seconds": float("nan")},
        {"served_model_name": ("\n",)},
        {"host": ""},
        {"host": "0.0.0.0"},
        {"host": "example.net"},
        {"max_stored_responses": -1},
        {"host": " "},
        {"ssl_certfile": __file__, "ssl_keyfile": __file__},
    ],
    ids=str,
)
def test_a_wrong_configuration_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerConfig(**options).check()  # type: ignore[arg-type]
    assert "'a b'" not in str(caught.value), "a key is in a message"


def test_an_open_address_wants_a_key_or_a_word() -> None:
    for options in ({"api_key": ("k" * 20,)}, {"insecure_no_key": True}):
        ServerConfig(host="0.0.0.0", **options).check()  # type: ignore[arg-type]
    ServerConfig(host="::1").check()
