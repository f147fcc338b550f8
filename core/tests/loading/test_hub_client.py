"""T34, T11 with the hub's own client, against a hub on this machine: redirects, and where the operator's token goes.

Weights lie with another host, as on the real hub: it gets the request and never the token, also where it asks for one.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tenon_core.loading.sources import MAX_REDIRECTS

pytestmark = pytest.mark.e2e
TOKEN = "hf_canary_of_the_operator"
COMMIT, BYTES = "a" * 40, bytes(64)
DIGEST = hashlib.sha256(BYTES).hexdigest()
FILES = [
    {"type": "file", "oid": "1" * 40, "size": 2, "path": "config.json"},
    {"type": "file", "oid": "2" * 40, "size": 64, "path": "model.safetensors",
     "lfs": {"oid": DIGEST, "size": 64, "pointerSize": 10}},
]  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Hosts:
    """The hub, and the storage that it redirects to. storage: what that one does."""

    storage: str = "gives"
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)  # host, path, token
    hub: ThreadingHTTPServer = field(init=False)
    other: ThreadingHTTPServer = field(init=False)

    def __post_init__(self) -> None:
        self.hub, self.other = self._host("hub"), self._host("storage")

    def _host(self, name: str) -> ThreadingHTTPServer:
        hosts = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hosts.asked.append((name, self.path, self.headers.get("authorization")))
                status, headers, body = hosts.hub_answer(self.path) if name == "hub" else hosts.storage_answer()
                self.send_response(status)
                for key, value in {**headers, "content-length": str(len(body))}.items():
                    self.send_header(key, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815 - as the library calls it

            def log_message(self, *arguments: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def hub_answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        if path.startswith("/api/models/org/name/tree"):
            return 200, {"content-type": "application/json"}, json.dumps(FILES).encode()
        if path.startswith("/api/models/org/name"):
            siblings = [{"rfilename": one["path"]} for one in FILES]
            told = {"id": "org/name", "_id": "1", "sha": COMMIT, "siblings": siblings}
            return 200, {"content-type": "application/json"}, json.dumps(told).encode()
        if path.startswith("/api/"):
            return 404, {}, b""
        if path.endswith("config.json"):
            return 200, {"x-repo-commit": COMMIT, "etag": f'"{"1" * 40}"'}, b"{}"
        linked = {"x-repo-commit": COMMIT, "x-linked-etag": f'"{DIGEST}"', "x-linked-size": "64"}
        return 302, {"location": f"http://localhost:{self.other.server_port}/blob", **linked}, b""

    def storage_answer(self) -> tuple[int, dict[str, str], bytes]:
        if self.storage == "gives":
            return 200, {}, BYTES
        if self.storage == "asks":
            return 401, {"www-authenticate": 'Bearer realm="give me the token"'}, b""
        if self.storage == "lies":
            return 200, {}, BYTES + b"more than was announced"
        return 302, {"location": f"http://localhost:{self.other.server_port}/blob?{len(self.asked)}"}, b""

    def close(self) -> None:
        self.hub.shutdown()
        self.other.shutdown()


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    made = Hosts()
    yield made
    made.close()


def download(hosts: Hosts, folder: Path) -> tuple[str, str]:
    """(the model's folder, what went wrong), in a process of its own: the client reads its settings once."""
    code = (
        "import sys\nfrom tenon_core.loading.sources import resolve_model\n"
        "from tenon_platforms.errors import ConfigError\n"
        "try: print(resolve_model('org/name', revision='v1', cache_dir=sys.argv[1]))\n"
        "except ConfigError as error: sys.stderr.write('REFUSED ' + error.message)"
    )
    settings = {"HF_ENDPOINT": f"http://127.0.0.1:{hosts.hub.server_port}", "HF_TOKEN": TOKEN, "HF_HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=100,
        env={**os.environ, **settings, "HF_HUB_OFFLINE": "0"},
    )  # fmt: skip
    assert TOKEN not in done.stdout + done.stderr and "Traceback" not in done.stderr, done.stderr
    return done.stdout.strip(), done.stderr.partition("REFUSED ")[2]


def check_tokens(hosts: Hosts) -> None:
    """The hub is told the token, nobody else is; and what is asked for is the commit of the revision.

    Of its own accord the client asks the hub, without a token, for what it says of itself.
    """
    ours = [(path, token) for host, path, token in hosts.asked if host == "hub" and "/name" in path]
    assert {token for _, token in ours} == {f"Bearer {TOKEN}"}
    assert {token for host, path, token in hosts.asked if host != "hub" or "/name" not in path} == {None}
    assert ours[0][0].endswith("/revision/v1") and all(COMMIT in path for path, _ in ours[1:]), ours
    assert any(host == "storage" for host, _, _ in hosts.asked)


def test_weights_come_without_the_token(hosts: Hosts, tmp_path: Path) -> None:
    folder, wrong = download(hosts, tmp_path)
    assert not wrong and (Path(folder) / "model.safetensors").read_bytes() == BYTES
    check_tokens(hosts)


@pytest.mark.parametrize("storage", ["asks", "sends on", "lies"])
def test_a_storage_that_is_hostile(hosts: Hosts, tmp_path: Path, storage: str) -> None:
    hosts.storage = storage
    folder, wrong = download(hosts, tmp_path)
    assert not folder and "could not be had from the hub" in wrong
    if storage == "sends on":
        sent = sum(host == "storage" for host, _, _ in hosts.asked)
        assert sent == 1 + MAX_REDIRECTS <= 3, "a chain of redirects has an end"
    check_tokens(hosts)
    assert not [path for path in tmp_path.rglob("model.safetensors") if path.stat().st_size]
