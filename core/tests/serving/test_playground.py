"""The playground's files as they are served, and GET /engine. What a browser makes of them: test_playground_browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_server import RunningServer, start_server

import tenon_core.serving
from tenon_core.serving import playground

pytestmark = pytest.mark.e2e
PAGE = Path(tenon_core.serving.__path__[0]) / "page"
# Ways for text to become code or HTML; the page has none, so that no review has to weigh one.
SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|srcdoc|setHTML|\beval\b"
    r"|new Function|javascript:|\.onclick|\.onerror|setAttribute\(.on"
)
IMPORT = re.compile(r'^import .* from "\./([a-z]+\.js)";$', re.MULTILINE)


class Tags(HTMLParser):
    """Tags with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))


def test_every_file_has_its_route() -> None:
    assert {one.name for one in PAGE.iterdir()} == {playground.PAGE, *playground.ASSETS}


@pytest.mark.parametrize("path", ["/", *(f"/playground/{name}" for name in playground.ASSETS)])
def test_a_file_is_public_and_tied_down(server: RunningServer, path: str) -> None:
    answer = httpx.get(server.url + path)
    assert answer.status_code == 200
    assert answer.content == (PAGE / (path.rpartition("/")[2] or playground.PAGE)).read_bytes()
    assert answer.headers["content-type"].startswith(("text/html", "text/css", "text/javascript", "image/svg+xml"))
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "require-trusted-types-for 'script'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = httpx.get(server.url + path, headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304 and not again.content


@pytest.mark.parametrize(
    "name", ["", "x.js", "index.html", "..%2f..%2fconfig.py", "../config.py", "main.js/", "__init__.py"]
)
def test_nothing_else_is_served(server: RunningServer, name: str) -> None:
    assert httpx.get(f"{server.url}/playground/{name}").status_code == 401
    with server.client() as client:
        assert client.get(f"/playground/{name}").status_code == 404


def test_the_page_is_whole_and_from_here() -> None:
    tags = Tags()
    tags.feed((PAGE / playground.PAGE).read_text())
    named = {attrs.get("src") or attrs.get("href") for _, attrs in tags.tags} - {None, "#prompt"}
    assert named <= {f"playground/{name}" for name in playground.ASSETS}
    for tag, attrs in tags.tags:
        assert not [name for name in attrs if name.startswith("on") or name == "style"], (tag, attrs)
    ids = {attrs["id"] for _, attrs in tags.tags if "id" in attrs}
    for script in PAGE.glob("*.js"):
        text = script.read_text()
        assert set(re.findall(r'byId\("([a-z-]+)"\)', text)) <= ids, script
        assert set(IMPORT.findall(text)) <= set(playground.ASSETS), script
        assert text.count("import ") == len(IMPORT.findall(text)), f"{script}: an import that is no file of ours"


def test_no_text_can_become_html_or_code() -> None:
    for script in PAGE.glob("*.js"):
        assert not SINKS.findall(script.read_text()), script
    assert SINKS.search("x.innerHTML = text")
    everything = "".join(one.read_text() for one in PAGE.iterdir()).replace("http://www.w3.org/2000/svg", "")
    assert not re.findall(r"https?://\S+|url\(", everything)


def test_the_engine_s_view(client: httpx.Client, server: RunningServer) -> None:
    assert httpx.get(f"{server.url}/engine").status_code == 401
    client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 20})
    found = client.get("/engine").json()
    assert found["status"] == "ready" and found["model"] == "fake" and found["platform"] == "fake"
    assert found["kernels"] == [{"op": "attention", "kernel": "echo", "source": "fake", "uses": 2}]
    assert found["stats"]["num_generated_tokens"] >= 20 and set(found["stats"]) == set(playground.STATS)
    assert found["max_model_len"] == 4096 and found["start_seconds"]


def test_it_can_be_turned_off(folder: Path, tmp_path: Path) -> None:
    running = start_server(folder, tmp_path / "log", playground=False)
    try:
        running.wait_healthy()
        assert httpx.get(running.url).status_code == 404
        assert httpx.get(f"{running.url}/playground/main.js").status_code == 404
        with running.client() as client:
            assert client.get("/engine").status_code == 200
    finally:
        assert running.stop() == 0
