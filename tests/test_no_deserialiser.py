"""T08: no process of a running server deserialises objects: at start, in one call of every route, and at the end.

An audit hook in every process (`audit/sitecustomize.py`, by way of PYTHONPATH) writes down what would.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from driver import installed_platforms
from served import ROOT, serving

pytestmark = pytest.mark.e2e
HOOK = ROOT / "tests" / "audit"
BODIES = {
    "/v1/completions": {"prompt": "hello", "max_tokens": 4, "logprobs": 2, "stream": True},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "n": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/responses": {"input": "hello", "max_output_tokens": 16},
    "/v1/responses/input_tokens": {"input": "hello"},
    "/v1/embeddings": {"input": "hello"},
    "/pooling": {"input": "hello"},
    "/classify": {"input": "hello"},
    "/score": {"text_1": "hello", "text_2": "world"},
    "/rerank": {"query": "hello", "documents": ["world"]},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [1, 2, 3]},
}
BODIES |= {f"/v{version}{path}": BODIES[path] for version in (1, 2) for path in ("/score", "/rerank")}
VECTORS = ("/embeddings", "/pooling", "/classify", "/score", "/rerank")  # ends of the routes that give some
PICKLED = "import pickle, pathlib; pickle.loads(pickle.dumps(pathlib.PurePath('x')))"
MARSHALLED = "import marshal; marshal.loads(marshal.dumps([1]))"


def audited(folder: Path) -> dict[str, str]:
    """An environment whose Python processes are watched."""
    folder.mkdir()
    path = os.pathsep.join(filter(None, (str(HOOK), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "AUDIT_FOLDER": str(folder)}


def told(folder: Path) -> tuple[int, list[str]]:
    """(processes watched, what they deserialised)."""
    lines = [line for file in folder.iterdir() for line in file.read_text().splitlines()]
    return len(list(folder.iterdir())), [line for line in lines if not line.endswith(" watched")]


@pytest.mark.parametrize("platform", installed_platforms(("cpu", "sim")))
def test_a_server_deserialises_nothing(platform: str, tiny_folder: Path, tmp_path: Path) -> None:
    from tenon_core.serving.app import routes

    folder = tmp_path / "audit"
    flags = (
        "--platform", platform, "--num-blocks", "64", "--max-num-seqs", "4", "--stall-seconds", "60",
        "--enable-sleep-mode",
    )  # fmt: skip
    with serving(tiny_folder, tmp_path / "log", *flags, environment=audited(folder)) as served:
        name = served.model()
        for method, path in (route.split(" ", 1) for route in routes()):
            url, body = served.url + path.replace("{name:path}", name), BODIES.get(path)
            if "{identity}" in path:
                asked = {"model": name, **BODIES["/v1/responses"]}
                made = httpx.post(f"{served.url}/v1/responses", json=asked, timeout=60)
                url = url.replace("{identity}", made.json()["id"])
            answer = httpx.request(method, url, json=body and {"model": name, **body}, timeout=60)
            # a generator gives no vectors, and what has ended cannot be cancelled: both are said by the route itself
            expected = 400 if path.endswith((*VECTORS, "/cancel")) else 200
            assert answer.status_code == expected, (method, path, answer.text)
    num_processes, events = told(folder)
    assert num_processes >= 3, "the server, its engine and the template's worker were not all watched"
    assert not events, "\n".join(events)


@pytest.mark.parametrize("code", [PICKLED, MARSHALLED])
def test_the_hook_sees_what_it_is_for(code: str, tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    subprocess.run([sys.executable, "-c", code], env=audited(folder), check=True)
    num_processes, events = told(folder)
    assert num_processes == 1 and events
