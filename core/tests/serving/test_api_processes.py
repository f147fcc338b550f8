"""Several API processes in front of one engine: shares, metrics as one, disconnects, deaths, restarts, the end."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from running_server import KEY, RunningServer, free_port, start_server

from tenon_core.engine.clients import client_of, first_id, shares
from tenon_core.engine.messages import Finished, PromptInfo, StepUpdate, TokenLogprobs, sequence_key
from tenon_core.serving.config import ServerConfig
from tenon_core.serving.siblings import merged
from tenon_platforms.errors import ConfigError

COUNT = 3


@pytest.fixture(scope="module")
def shared(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, int]]:
    port = free_port()
    running = start_server(
        folder, tmp_path_factory.mktemp("logs") / "log", api_server_count=COUNT, metrics_port=port,
        environment={"FAKE_STEP_SECONDS": "0.004"},
    )  # fmt: skip
    try:
        running.wait_healthy()
        until(lambda: httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200)
        yield running, port
    finally:
        code = running.stop()
    log = running.log.read_text()
    assert code == 0 and "Traceback" not in log and "Fatal" not in log, running.log.read_text()[-4000:]


def until(holds: Any, seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def children(running: RunningServer) -> list[psutil.Process]:
    """The API processes that live."""
    found = psutil.Process(running.process.pid).children()
    return [one for one in found if is_alive(one) and "api_process" in " ".join(one.cmdline())]


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def value(text: str, start: str) -> float:
    return float(next(line for line in text.splitlines() if line.startswith(start)).split()[-1])


def ask(url: str, text: str, **fields: Any) -> httpx.Response:
    """One request on a connection of its own, so that the system chooses a process."""
    body = {"prompt": text, "max_tokens": 6, **fields}
    return httpx.post(f"{url}/v1/completions", json=body, headers={"authorization": f"Bearer {KEY}"}, timeout=60)


@pytest.mark.unit
def test_an_update_is_divided() -> None:
    ids = [first_id(0), first_id(1), first_id(1) + 1, first_id(5)]
    keys = np.array([sequence_key(one, 0) for one in (ids[0], ids[1], ids[3], ids[2], ids[0])], dtype="<i8")
    lp = [TokenLogprobs(one, -1.0, 1, (), ()) for one in range(3)]
    update = StepUpdate(
        step=7, keys=keys.tobytes(), tokens=np.arange(5, dtype="<i4").tobytes(),
        logprobs=((0, lp[0]), (3, lp[1]), (4, lp[2])), finished=(Finished(key=int(keys[3]), reason=0),),
        prompts=(PromptInfo(key=sequence_key(first_id(9), 0), num_cached_tokens=1),),
    )  # fmt: skip
    found = shares(update)
    assert sorted(found) == [0, 1, 5, 9]
    assert np.frombuffer(found[0].tokens, "<i4").tolist() == [0, 4] and found[0].logprobs == ((0, lp[0]), (1, lp[2]))
    assert np.frombuffer(found[1].tokens, "<i4").tolist() == [1, 3] and found[1].logprobs == ((1, lp[1]),)
    assert found[1].finished == update.finished and not found[0].finished and not found[9].keys
    assert found[9].prompts == update.prompts and np.frombuffer(found[5].tokens, "<i4").tolist() == [2]
    assert client_of(first_id(126)) == 126 and sequence_key(first_id(126), 65535) < 2**63
    alone = StepUpdate(step=1, keys=keys[:1].tobytes(), tokens=b"\0" * 4)
    assert shares(alone) == {0: alone}


@pytest.mark.unit
def test_metrics_are_added_where_each_counts_its_own() -> None:
    row = (
        b'tenon:request_success_total{a="b"} %d.0\ntenon:num_blocks{a="b"} 9.0\nvllm:request_params_n_sum{a="b"} %.1f\n'
    )
    assert merged(b"# HELP x\n" + row % (2, 0.5), [row % (3, 1.5) + b"bad\n", b"\xff\x00"]) == (
        b"# HELP x\n" + row % (5, 2.0)
    )


@pytest.mark.unit
@pytest.mark.parametrize("options", [{"api_server_count": 0}, {"api_server_count": 65}])
def test_wrong_counts_are_refused(options: Any) -> None:
    with pytest.raises(ConfigError, match="api_server_count"):
        ServerConfig(**options).check()


def call(running: RunningServer, method: str, path: str, key: str = KEY, **body: Any) -> httpx.Response:
    """One request on a connection of its own."""
    headers = {"authorization": f"Bearer {key}"}
    return httpx.request(method, running.url + path, json=body or None, headers=headers, timeout=60)


@pytest.mark.e2e
def test_responses_are_found_whichever_process_is_asked(shared: tuple[RunningServer, int]) -> None:
    running, _ = shared
    made = [call(running, "POST", "/v1/responses", input=f"text {i}", max_output_tokens=6).json() for i in range(24)]
    places = {one["id"][5:7] for one in made}
    assert len(places) > 1, "one process answered all: nothing is shown"
    for one in made:
        for _ in range(4):
            assert call(running, "GET", f"/v1/responses/{one['id']}").json() == one
    first = made[0]
    page = [call(running, "GET", f"/v1/responses/{first['id']}/input_items?limit=1&order=asc").json() for _ in range(8)]
    assert all(one == page[0] for one in page) and page[0]["data"][0]["content"][0]["text"] == "text 0"
    grown = first["id"]
    for i in range(8):  # a chain over the processes
        answer = call(
            running, "POST", "/v1/responses", input=f"more {i}", previous_response_id=grown, max_output_tokens=3
        )
        assert answer.status_code == 200, answer.text
        grown = answer.json()["id"]
    listed = call(running, "GET", f"/v1/responses/{grown}/input_items?limit=100&order=asc").json()["data"]
    texts = [part["text"] for item in listed if item.get("role") == "user" for part in item["content"]]
    assert texts == ["text 0", *(f"more {i}" for i in range(8))]
    item = first["output"][0]["id"]
    for _ in range(6):
        referred = [{"type": "item_reference", "id": item}, {"role": "user", "content": "x"}]
        assert call(running, "POST", "/v1/responses", input=referred, max_output_tokens=3).status_code == 200
    for one in made[1:9]:
        assert call(running, "DELETE", f"/v1/responses/{one['id']}").json()["deleted"] is True
        for _ in range(4):
            assert call(running, "GET", f"/v1/responses/{one['id']}").status_code == 404
    unknown = f"resp_{first['id'][5:7]}{'0' * 48}"
    for path in (unknown, "resp_zz", "01/..%2f..%2fmetrics", f"{unknown}%3Fx", "resp_ff" + "0" * 48):
        for _ in range(4):
            assert call(running, "GET", f"/v1/responses/{path}").status_code == 404
    answer = call(running, "POST", "/v1/responses", input="a", previous_response_id=unknown)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "previous_response_not_found"


@pytest.mark.e2e
def test_a_response_is_cancelled_whichever_process_is_asked(shared: tuple[RunningServer, int]) -> None:
    running, _ = shared
    for _ in range(6):
        made = call(running, "POST", "/v1/responses", input="long", background=True, ignore_eos=True).json()
        assert made["status"] == "in_progress"
        answer = call(running, "POST", f"/v1/responses/{made['id']}/cancel")
        assert answer.json()["status"] == "cancelled", answer.text
        assert call(running, "GET", f"/v1/responses/{made['id']}").json()["status"] == "cancelled"
        again = call(running, "POST", f"/v1/responses/{made['id']}/cancel")
        assert again.status_code == 400 and again.json()["error"]["param"] == "response_id"


@pytest.mark.e2e
def test_every_process_answers_and_the_metrics_are_one(shared: tuple[RunningServer, int]) -> None:
    running, port = shared
    own = f"http://127.0.0.1:{port}/metrics"
    before = value(httpx.get(own).text, 'tenon:request_success_total{finished_reason="length"')
    for place in range(40):
        answer = ask(running.url, f"prompt {place:02}", max_tokens=9)
        assert answer.json()["choices"][0]["text"] == f"prompt {place:02}"
    text = httpx.get(own).text
    assert value(text, 'tenon:request_success_total{finished_reason="length"') == before + 40
    assert value(text, "tenon:engine_up") == 1
    scraped = httpx.get(f"{running.url}/metrics", headers={"authorization": f"Bearer {KEY}"}).text
    assert value(scraped, 'tenon:request_success_total{finished_reason="length"') == before + 40
    assert value(scraped, "tenon:generation_tokens_total") == value(text, "tenon:generation_tokens_total")
    times = [one.cpu_times().user for one in children(running)]
    assert len(times) == COUNT and httpx.get(f"{running.url}/v1/models").status_code == 401


@pytest.mark.e2e
def test_streams_side_by_side_are_not_mixed_up(shared: tuple[RunningServer, int]) -> None:
    running, _ = shared

    async def stream(client: httpx.AsyncClient, place: int) -> str:
        body = {"prompt": f"<{place:03}>", "max_tokens": 50, "stream": True}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = [one async for one in answer.aiter_lines() if one.startswith("data: {")]
        import json

        return "".join(json.loads(one[6:])["choices"][0]["text"] for one in lines)

    async def all_of_them() -> list[str]:
        headers = {"authorization": f"Bearer {KEY}"}
        limits = httpx.Limits(max_connections=60, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=running.url, headers=headers, timeout=60, limits=limits) as client:
            return await asyncio.gather(*(stream(client, place) for place in range(60)))

    assert asyncio.run(all_of_them()) == [f"<{place:03}>" * 10 for place in range(60)]


@pytest.mark.e2e
def test_a_disconnect_ends_the_work(shared: tuple[RunningServer, int]) -> None:
    running, port = shared
    body = {"prompt": "long", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    for _ in range(6):
        with httpx.stream("POST", f"{running.url}/v1/completions", json=body, headers={"x-api-key": KEY}) as answer:
            next(answer.iter_lines())
    until(lambda: value(httpx.get(f"http://127.0.0.1:{port}/metrics").text, "tenon:num_requests_running") == 0)


@pytest.mark.e2e
def test_the_sockets_are_private(shared: tuple[RunningServer, int]) -> None:
    running, port = shared
    parent = psutil.Process(running.process.pid)
    tree = [parent, *parent.children(recursive=True)]
    tcp = {(one.laddr.ip, one.laddr.port) for p in tree for one in p.net_connections("tcp") if one.status == "LISTEN"}
    assert tcp == {("127.0.0.1", running.port), ("127.0.0.1", port)}
    named = {one.laddr for p in tree for one in p.net_connections("unix") if one.laddr}
    assert len(named) == COUNT + 1
    for path in map(Path, named):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.e2e
def test_a_process_that_dies_is_replaced_and_its_requests_end(shared: tuple[RunningServer, int]) -> None:
    running, port = shared
    body = {"prompt": "long", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    victims = children(running)
    with httpx.stream("POST", f"{running.url}/v1/completions", json=body, headers={"x-api-key": KEY}) as answer:
        lines = answer.iter_lines()  # held: the connection closes with it
        next(lines)
        holder = next(one for one in victims if any(c.status == "ESTABLISHED" for c in one.net_connections("tcp")))
        holder.kill()
    until(lambda: len(children(running)) == COUNT and holder.pid not in {one.pid for one in children(running)})
    until(lambda: value(httpx.get(f"http://127.0.0.1:{port}/metrics").text, "tenon:num_requests_running") == 0)
    until(lambda: httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200)
    for _ in range(20):
        assert ask(running.url, "abc").json()["choices"][0]["text"] == "abcabc"


@pytest.mark.e2e
def test_an_engine_that_dies_is_found_again_by_all(shared: tuple[RunningServer, int]) -> None:
    running, port = shared
    os.kill(running.engine_pid(), signal.SIGKILL)
    until(lambda: httpx.get(f"http://127.0.0.1:{port}/health").status_code == 503)
    until(lambda: httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200)
    until(lambda: all(running.health() == 200 for _ in range(10)))
    for _ in range(20):
        assert ask(running.url, "abc").json()["choices"][0]["text"] == "abcabc"


@pytest.mark.e2e
def test_running_requests_finish_at_the_end(folder: Path, tmp_path: Path) -> None:
    running = start_server(
        folder, tmp_path / "log", api_server_count=2, environment={"FAKE_STEP_SECONDS": "0.02"}, drain_seconds=20
    )
    running.wait_healthy()
    until(lambda: "serving fake at" in running.log.read_text())
    body = {"prompt": "drain", "max_tokens": 60, "stream": True}
    with httpx.stream(
        "POST", f"{running.url}/v1/completions", json=body, headers={"x-api-key": KEY}, timeout=30
    ) as answer:
        lines = answer.iter_lines()
        next(lines)
        running.process.send_signal(signal.SIGTERM)
        assert [one for one in lines if one][-1] == "data: [DONE]"
    assert running.process.wait(20) == 0
    log = running.log.read_text()
    assert "Traceback" not in log and "Fatal" not in log and log.count("serving fake at") == 1


@pytest.mark.e2e
def test_a_broken_model_ends_all(tmp_path: Path) -> None:
    from fake_model import model_folder

    running = start_server(model_folder(tmp_path / "broken"), tmp_path / "log", api_server_count=2)
    assert running.process.wait(60) == 2 and "the fake model is broken" in running.log.read_text()


@pytest.mark.e2e
def test_an_api_process_that_cannot_start_is_told(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jinja").write_text("{% for %}")
    running = start_server(folder, tmp_path / "log", api_server_count=2, chat_template=str(tmp_path / "bad.jinja"))
    assert running.process.wait(60) == 2 and "template" in running.log.read_text()
