"""T05, T19, T21 to T23, T26 to T28, T33 to T36: what a client may not reach, send or be, on every route that takes it.

Which routes and fields there are comes from the API's own description, so that a new one is attacked without being
told. Media is not served: nothing that names it is fetched or opened, which a canary server and a canary file show.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from api_cases import PLAIN_BODIES, check, load
from fake_engine import VOCAB
from running_server import KEY, REFUSAL_SECONDS, RunningServer, start_server

from tenon_core.client.templates import TemplateLimits

pytestmark = pytest.mark.e2e
OTHER = "second-horse-battery"
COMPLETIONS, CHAT, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
TEXT = [path for path in PLAIN_BODIES if path.startswith(("/v1/c", "/v1/resp", "/v1/mess", "/tok"))]
POOLED = [path for path in PLAIN_BODIES if path not in (*TEXT, "/detokenize")]
MUTATING = (
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/update_weights", "/update_weights_from_disk", "/sleep",
    "/wake_up", "/reset_prefix_cache", "/flush_cache", "/start_profile", "/stop_profile", "/collective_rpc", "/pause",
    "/resume", "/api/pull", "/api/delete", "/v2/repository/models/m/load", "/v2/logging", "/v2/trace/setting",
    "/models/load", "/slots/0", "/props", "/lora-adapters", "/set_internal_state", "/configure_logging", "/shutdown",
    "/server_info", "/is_sleeping", "/init_weights_update_group", "/scale_elastic_ep", "/v1/files", "/invocations",
)  # fmt: skip


@pytest.fixture(scope="module")
def pooler(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = start_server(folder, tmp_path_factory.mktemp("pooler") / "log", environment={"FAKE_POOLING": "pool"})
    try:
        running.wait_healthy()
        yield running
    finally:
        running.stop()
    assert "Traceback" not in running.log.read_text()


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/score", {"text_1": ["a", ""], "text_2": ["b", "c"]}, "text_1"),
        ("/score", {"queries": "a", "documents": ["b", ""]}, "documents"),
        ("/rerank", {"query": "", "documents": ["b"]}, "query"),
        ("/rerank", {"query": "a", "documents": [""]}, "documents"),
    ],
)
def test_a_text_without_tokens_is_told_by_its_field(
    pooler: RunningServer, path: str, body: dict[str, Any], field: str
) -> None:
    with pooler.client() as client:
        answer = client.post(path, json=body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field, answer.text


@pytest.fixture(scope="module")
def two_keys(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = start_server(
        folder, tmp_path_factory.mktemp("keys") / "log", api_key=[KEY, OTHER],
        environment={"FAKE_STEP_SECONDS": "0.01"},
    )  # fmt: skip
    try:
        running.wait_healthy()
        yield running
    finally:
        running.stop()
    log = running.log.read_text()
    assert "Traceback" not in log and KEY not in log and OTHER not in log


def refused(server: RunningServer, path: str, body: dict[str, Any], status: int = 400) -> str:
    """The error's text. It has the route's shape, and says nothing of the server's inside."""
    headers = {"content-type": "application/json"}
    answer = client_of(server).post(path, content=json.dumps(body), headers=headers)
    assert answer.status_code == status, (path, str(body)[:200], answer.status_code, answer.text[:300])
    check(load_once(server), f"POST {path}", status, answer.headers["content-type"], answer.content)
    return answer.text


@cache
def client_at(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"x-api-key": KEY}, timeout=60)


def client_of(server: RunningServer) -> httpx.Client:
    """One client a server, whose connections are used again."""
    return client_at(server.url)


_LOADED: dict[int, dict[str, Any]] = {}


def load_once(server: RunningServer) -> dict[str, Any]:
    if server.port not in _LOADED:
        _LOADED[server.port] = load(server)
    return _LOADED[server.port]


def test_nothing_changes_a_running_server(client: httpx.Client, server: RunningServer) -> None:
    """T05, T04: no such route with any method, though the key is right; and no GET where a POST does work."""
    for path in MUTATING:
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            assert client.request(method, path, json={"path": "/tmp/x"}).status_code == 404, (method, path)
    for path in PLAIN_BODIES:
        answer = client.get(path, params={"prompt": "a"})
        named = path.startswith("/v1/responses/")  # it would be a response's id, which there is not
        assert (answer.status_code, answer.headers.get("allow")) == ((404, None) if named else (405, "POST")), path
    for path in TEXT:
        for name in ("logits_processors", "custom_logit_processor", "lora_path", "log_path", "trace_file"):
            assert name in refused(server, path, {**PLAIN_BODIES[path], name: "x"})


def test_no_websocket(server: RunningServer) -> None:
    """T01: an upgrade is no way around the key."""
    for path in ("/v1/realtime", "/v1/completions", "/health/../v1/models"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as link:
            link.sendall(
                b"GET "
                + path.encode()
                + b" HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            )
            assert link.recv(65536).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("path", TEXT)
def test_templates_and_parsers_come_from_the_operator(server: RunningServer, path: str) -> None:
    """T19."""
    base = PLAIN_BODIES[path]
    for name in ("chat_template", "tool_call_parser", "reasoning_parser", "tool_parser", "parser"):
        assert name in refused(server, path, {**base, name: "{{ 1 }}"})
    if path in (COMPLETIONS,):
        assert "chat_template_kwargs" in refused(server, path, {**base, "chat_template_kwargs": {"a": 1}})
        return
    if path.endswith("count_tokens"):
        assert "chat_template_kwargs" in refused(server, path, {**base, "chat_template_kwargs": {"shout": True}})
        return
    talk = base if "prompt" not in base else {"messages": PLAIN_BODIES[CHAT]["messages"]}
    for kwargs in (
        {"chat_template": "x"}, {"messages": []}, {"tools": []}, {"tokenize": True}, {"add_generation_prompt": False},
        {"conversation": 1}, {"loop": 1}, {"nowhere": 1}, {"__class__": 1}, {"shout": [1] * 10**5},
    ):  # fmt: skip
        assert "chat_template_kwargs" in refused(server, path, {**talk, "chat_template_kwargs": kwargs})


def numbers(document: dict[str, Any], path: str) -> Iterator[str]:
    """Fields of a route's request that are numbers and nothing else."""
    reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    for name, schema in document["components"]["schemas"][reference.rpartition("/")[2]]["properties"].items():
        kinds = {one.get("type") for one in schema.get("anyOf", (schema,))}
        if kinds & {"integer", "number"} and kinds <= {"integer", "number", "null"}:
            yield name


@pytest.mark.parametrize("path", [*TEXT, *POOLED])
def test_no_numeric_field_is_missed(server: RunningServer, pooler: RunningServer, path: str) -> None:
    """T22: what is no number, or beyond any ceiling, names its field."""
    running = pooler if path in POOLED else server
    found = list(numbers(load_once(running), path))
    assert found or path in ("/tokenize", "/v1/messages/count_tokens", "/v1/responses/input_tokens")
    for name in found:
        for value in (True, "1", [1], {"a": 1}, 2**64, -(2**64), 1e308, -1e308, "NaN"):
            text = refused(running, path, {**PLAIN_BODIES[path], name: value})
            assert name.removeprefix("top_").removeprefix("max_completion_") in text, (name, value, text)


@pytest.mark.parametrize("path", POOLED)
def test_long_lists_of_texts(pooler: RunningServer, path: str) -> None:
    """T21: refused before anything is encoded."""
    before = psutil.Process(pooler.process.pid).memory_info().rss
    base = PLAIN_BODIES[path]
    for name in {"input", "documents", "text_1", "text_2", "queries"} & set(base):
        for count in (129, 10**5):
            began = time.monotonic()
            refused(pooler, path, {**base, name: ["x"] * count})
            assert time.monotonic() - began < REFUSAL_SECONDS
    for body in ({}, {name: [] for name in base}, {**base, "top_n": -1}):
        refused(pooler, path, body)
    assert psutil.Process(pooler.process.pid).memory_info().rss - before < 100 * 2**20


def test_token_ids_of_vectors(pooler: RunningServer) -> None:
    """T23, for prompts given as ids."""
    for path in ("/v1/embeddings", "/pooling", "/classify"):
        for token in (-1, VOCAB, 2**31, 2**63, True, 1.5, None):
            refused(pooler, path, {"input": [5, token]})
            refused(pooler, path, {"input": [[5], [token]]})
        refused(pooler, path, {"input": [[]]})
        refused(pooler, path, {"input": [5] * 10**6})
        if path == "/classify":  # nothing that this model does
            continue
        with pooler.client() as client:
            for wrong in ([VOCAB], [[]], [""], [5] * 5000, "a" * 5000, "a b " * 50_000):
                error = client.post(path, json={"input": wrong}).json()["error"]
                assert error["param"] == "input", error


def test_a_neighbour_notices_nothing(client: httpx.Client, server: RunningServer) -> None:
    """T23, T44: a request at a fixed seed beside the attacks is byte for byte what it is without them."""
    body = {"prompt": "the quick brown fox", "max_tokens": 600, "seed": 11, "temperature": 1.0, "logprobs": 2}
    quiet = client.post(COMPLETIONS, json=body).json()["choices"]
    with ThreadPoolExecutor(1) as thread, server.client() as own:
        beside = thread.submit(lambda: own.post(COMPLETIONS, json=body).json()["choices"])
        rounds = 0
        while not beside.done() or not rounds:
            rounds += 1
            for token in (-1, VOCAB, 2**31):
                refused(server, COMPLETIONS, {"prompt": [5, token]})
                refused(server, COMPLETIONS, {"prompt": "a", "stop_token_ids": [token]})
            refused(server, COMPLETIONS, {"prompt": "a", "structured_outputs": {"regex": "("}})
        assert beside.result() == quiet and rounds


NASTY = "x\r\nINFO forged\x1b[31m\x00\u202e"


@pytest.mark.parametrize("path", TEXT)
def test_nothing_forges_a_log_line(server: RunningServer, path: str) -> None:
    """T43: odd characters and a megabyte of them in every text that is a label, by every protocol; no key anywhere."""
    base, lines = PLAIN_BODIES[path], len(server.log.read_bytes().splitlines())
    attacks = [{name: value} for name in ("model", "user", "request_id", "session_id", "cache_salt", "metadata", NASTY)
               for value in (NASTY, NASTY * 50_000, {NASTY: NASTY}, [NASTY])]  # fmt: skip
    for attack in attacks:
        answer = client_of(server).post(path, json={**base, **attack}, headers={"user-agent": "x\x1b[31m"})
        assert answer.status_code in (200, 400, 404), answer.text[:300]
        assert len(answer.content) < 3000 or answer.status_code == 200
        assert not any(one in answer.text for one in ("Traceback", "site-packages", "0x7f", KEY))
    log = server.log.read_bytes()
    assert not any(one in log for one in (b"\x1b", b"\x00", "\u202e".encode(), KEY.encode()))
    new = log.splitlines()[lines:]
    assert len(new) == len(attacks) and max(map(len, new)) < 6000, "one event is one line"
    for child in psutil.Process(server.process.pid).children(recursive=True):
        assert KEY not in " ".join(child.cmdline())
    assert KEY not in client_of(server).get("/metrics").text


TENSOR = {"dtype": "float32", "shape": [1, 2**40], "data": "AAAA"}
PARTS: list[dict[str, Any]] = [
    {"type": "image_embeds", "image_embeds": "gASVAAAA"}, {"type": "audio_embeds", "audio_embeds": TENSOR},
    {"type": "input_image", "file_id": "x"}, {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    {"type": "image_pil", "image_pil": None}, {"type": "shm", "name": "/psm_x"}, {"type": "file", "file": {"id": "x"}},
]  # fmt: skip


def contents(part: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every request that takes a message, with this part in it."""
    message = [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]
    yield CHAT, {"messages": message, "max_tokens": 2}
    yield RESPONSES, {"input": message, "max_output_tokens": 2}
    yield MESSAGES, {"messages": message, "max_tokens": 2}
    yield f"{MESSAGES}/count_tokens", {"messages": message}
    yield "/tokenize", {"messages": message}


def test_no_tensor_comes_with_a_request(server: RunningServer) -> None:
    """T26: fields, parts and handles, 64 at a time."""
    attacks: list[tuple[str, dict[str, Any]]] = []
    for path in TEXT:
        for name in ("prompt_embeds", "image_embeds", "multi_modal_data", "mm_processor_kwargs", "kv_transfer_params",
                     "mm_hashes", "shm_name", "hidden_states"):  # fmt: skip
            attacks += [(path, {**PLAIN_BODIES[path], name: value}) for value in (TENSOR, "gASVAAAA", [[1.0]])]
    attacks += [one for part in PARTS for one in contents(part)]
    with ThreadPoolExecutor(64) as threads:
        for text in threads.map(lambda one: refused(server, *one), attacks):
            assert "error" in text


def test_ids_are_labels(two_keys: RunningServer) -> None:
    """T27: the same id from two tenants at once, odd ids, ids of internal things."""

    def ask(place: int) -> tuple[str, str, str]:
        headers = {"authorization": f"Bearer {(KEY, OTHER)[place % 2]}", "x-request-id": "same", "x-session-id": "same"}
        text = f"answer {place:03}"
        body = {"prompt": text, "max_tokens": len(text), "request_id": "same", "user": "same"}
        answer = httpx.post(f"{two_keys.url}{COMPLETIONS}", json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        return text, answer.json()["choices"][0]["text"], answer.headers["x-request-id"]

    with ThreadPoolExecutor(16) as threads:
        for given, got, label in threads.map(ask, range(64)):
            assert got == given and label == "same"
    for odd in ("a" * 10_000, "\x7f", "a b", "../x", "\u00e9", "{}", "%0d%0a"):
        raw = [(b"authorization", f"Bearer {KEY}".encode()), (b"x-request-id", odd.encode("latin-1"))]
        answer = httpx.get(f"{two_keys.url}/version", headers=raw)
        assert answer.status_code == 400 or answer.headers["x-request-id"] != odd
    assert httpx.get(f"{two_keys.url}/version", headers={"x-api-key": KEY, "x-request-id": "7"}).headers[
        "x-request-id"
    ] == "7"  # fmt: skip
    for name in (
        "kv_transfer_params",
        "mm_hashes",
        "placeholder_ranges",
        "cache_key",
        "block_hashes",
        "data_parallel_rank",
    ):
        refused(two_keys, CHAT, {**PLAIN_BODIES[CHAT], name: {"remote_block_ids": [1], "remote_host": "x"}})
    for salt in ("", "x" * 257, "a\nb", "\x00", 5, ["a"]):
        for path in (COMPLETIONS, CHAT, RESPONSES, MESSAGES):
            assert "cache_salt" in refused(two_keys, path, {**PLAIN_BODIES[path], "cache_salt": salt})


def stays(server: RunningServer) -> dict[str, float]:
    """What must come back to where it was.

    Template workers are counted apart: their pool starts another, with two pipes to it, whenever all are busy.
    """
    tree = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
    lasting = [one for one in tree if not any("template_worker" in word for word in one.cmdline())]
    workers = len(tree) - len(lasting)
    with server.client() as client:
        stats = client.get("/engine").json()["stats"] or {}
    return {
        "running": stats.get("num_running", 0),
        "workers": workers,
        "descriptors": sum(one.num_fds() for one in lasting) - 2 * workers,
        "threads": sum(one.num_threads() for one in lasting),
        "megabytes": sum(one.memory_info().rss for one in lasting) / 2**20,
    }


@pytest.mark.parametrize("count", [160, pytest.param(1000, marks=pytest.mark.full)])
def test_cancelled_in_every_way(two_keys: RunningServer, count: int) -> None:
    """T28: by disconnect before and during the answer, by id, twice, by another key; only the owner's ends."""
    headers = {"authorization": f"Bearer {KEY}"}
    long = {"max_output_tokens": 4000, "ignore_eos": True, "input": "long"}

    def disconnect(place: int) -> None:
        body = json.dumps({"prompt": "abc", "max_tokens": 4000, "ignore_eos": True, "stream": place % 2 == 0}).encode()
        with socket.create_connection(("127.0.0.1", two_keys.port), timeout=30) as link:
            link.sendall(
                f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            if place % 4 == 0:
                link.recv(100)

    def cancel(_: int) -> None:
        fresh = httpx.Limits(max_keepalive_connections=0)  # an idle connection may end as it is used again
        with httpx.Client(base_url=two_keys.url, headers=headers, timeout=60, limits=fresh) as own:
            made = own.post(RESPONSES, json={**long, "background": True})
            if made.status_code == 429:  # the queue is full of others'
                return
            identity = made.json()["id"]
            foreign = httpx.post(
                f"{two_keys.url}{RESPONSES}/{identity}/cancel", headers={"x-api-key": OTHER}, timeout=60
            )
            assert foreign.status_code == 404 and own.get(f"{RESPONSES}/{identity}").json()["status"] == "in_progress"
            assert own.post(f"{RESPONSES}/{identity[:-1]}/cancel").status_code == 404, "the start of an id is no id"
            assert own.post(f"{RESPONSES}/{identity}/cancel").json()["status"] == "cancelled"
            assert own.post(f"{RESPONSES}/{identity}/cancel").status_code == 400
            assert own.delete(f"{RESPONSES}/{identity}").status_code == 200

    def run(rounds: int) -> None:
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(disconnect, range(rounds)))
            list(threads.map(cancel, range(rounds // 8)))

    run(64)  # what is made once and kept
    settled(two_keys)
    before = settled(two_keys)
    run(count)
    after, deadline = settled(two_keys), time.monotonic() + 60
    while after["descriptors"] > before["descriptors"] + 8 and time.monotonic() < deadline:
        time.sleep(1)  # a busy machine takes its time to close; what leaked stays open
        after = stays(two_keys)
    assert after["running"] == 0 and after["workers"] <= TemplateLimits().num_workers
    pool = min(32, (os.cpu_count() or 1) + 4)  # threads of the event loop's pool, which are made as they are needed
    assert after["descriptors"] <= before["descriptors"] + 8 and after["threads"] <= before["threads"] + pool
    assert after["megabytes"] < before["megabytes"] * 1.05 + 16


def settled(server: RunningServer) -> dict[str, float]:
    """As `stays`, once nothing runs and closed connections are gone."""
    deadline = time.monotonic() + 60
    while stays(server)["running"] and time.monotonic() < deadline:
        time.sleep(0.2)
        with server.client() as client:  # statistics come with steps
            client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1})
    time.sleep(6)  # keep-alive connections end after 5 s
    return stays(server)


class Canary:
    """A server that counts who comes."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.hits = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                link, _ = self.listener.accept()
            except OSError:
                return
            self.hits += 1
            link.close()


@pytest.fixture
def canary() -> Iterator[Canary]:
    made = Canary()
    yield made
    with socket.create_connection(("127.0.0.1", made.port)):
        time.sleep(0.2)
    made.listener.close()
    assert made.hits == 1, "it counts, and nobody else came"


HOSTS = (
    "127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f000001", "0177.0.0.1", "127.1",
    "0.0.0.0", "127.0.0.1.", "user@127.0.0.1", "127.0.0.1\\@example.net", "example.net@127.0.0.1", "LOCALHOST",
    "169.254.169.254", "100.64.0.1", "10.0.0.1", "224.0.0.1", "[64:ff9b::7f00:1]", "metadata.google.internal",
)  # fmt: skip
SCHEMES = ("http", "HTTP", "https", "ftp", "gopher", "dict", "s3")


def test_nothing_is_fetched(server: RunningServer, canary: Canary) -> None:
    """T33, T34, T36: media by address in every message, tool and name; links in texts stay texts."""
    urls = [f"http://{host}:{canary.port}/x" for host in HOSTS]
    urls += [f"{scheme}://127.0.0.1:{canary.port}/x" for scheme in SCHEMES]
    urls += [f"//127.0.0.1:{canary.port}/x", f"http:/127.0.0.1:{canary.port}", f" http://127.0.0.1:{canary.port}/"]
    attacks: list[tuple[str, dict[str, Any]]] = []
    for url in urls:
        for part in (
            {"type": "image_url", "image_url": {"url": url}}, {"type": "image_url", "image_url": url},
            {"type": "audio_url", "audio_url": {"url": url}}, {"type": "video_url", "video_url": {"url": url}},
            {"type": "input_image", "image_url": url}, {"type": "input_file", "file_url": url},
            {"type": "image", "source": {"type": "url", "url": url}},
            {"type": "document", "source": {"type": "url", "url": url}},
        ):  # fmt: skip
            attacks += contents(part)
    many = {"type": "image_url", "image_url": {"url": urls[0]}}
    attacks.append((CHAT, {"messages": [{"role": "user", "content": [many] * 1000}]}))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda one: refused(server, *one), attacks))
    for url in urls[:3]:
        refused(server, CHAT, {**PLAIN_BODIES[CHAT], "model": url}, status=404)
        tool = {"type": "mcp", "server_url": url, "server_label": "x"}
        refused(server, RESPONSES, {**PLAIN_BODIES[RESPONSES], "tools": [tool]})
        schema = {"json": {"$ref": url}}
        refused(server, COMPLETIONS, {**PLAIN_BODIES[COMPLETIONS], "structured_outputs": schema})
        text = f"see ![x]({url}) <img src='{url}'> {url}"
        with server.client() as client:
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 3}
            assert client.post(CHAT, json=body).status_code == 200


def test_no_file_is_opened(server: RunningServer, tmp_path: Path) -> None:
    """T35: addresses of files, with parent parts, links, devices and pipes; the file's bytes come back nowhere."""
    secret = tmp_path / "secret.txt"
    secret.write_text("the-canary-sings")
    (tmp_path / "link").symlink_to(secret)
    for name in (
        f"file://{secret}", f"file://localhost{secret}", f"file:{secret}", str(secret), f"file://{tmp_path}/link",
        f"file://{tmp_path}/x/../secret.txt", f"file://{tmp_path}/%2e%2e/{tmp_path.name}/secret.txt", "file:///dev/zero",
        "file:///proc/self/environ", f"FILE://{secret}", f"data:text/plain,{secret}", "../../../../etc/passwd",
    ):  # fmt: skip
        for part in ({"type": "image_url", "image_url": {"url": name}}, {"type": "input_image", "image_url": name}):
            for path, body in contents(part):
                text = refused(server, path, body)
                assert "the-canary-sings" not in text and "root:" not in text
        answer = client_of(server).post(COMPLETIONS, json={**PLAIN_BODIES[COMPLETIONS], "model": name})
        assert answer.status_code == 404 and "the-canary-sings" not in answer.text
