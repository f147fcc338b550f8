"""The benchmarks: shapes of what they report, workloads, percentiles, the load generator against a real socket."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenon_core.cli.bench.distribution import describe, parse_percentiles, percentile
from tenon_core.cli.bench.load import Pace, Target, run_load, send
from tenon_core.cli.bench.options import random_ids
from tenon_core.cli.bench.workload import Ask, Workload
from tenon_platforms.errors import ConfigError

pytestmark = pytest.mark.unit
SMALL = ("--steps", 5, "--runs", 2, "--warmup", 3, "--prompt-len", 20)


def test_host_reports_a_case_each(tenon: Callable[..., Any]) -> None:
    cases = tenon("bench", "host", "--requests", 3, "--requests", 17, *SMALL, "--json").json()
    assert [case["requests"] for case in cases] == [3, 17]
    for case in cases:
        parts = [case[f"{phase}_ms"] for phase in ("schedule", "prepare", "launch", "post")]
        assert all(part > 0 for part in parts)
        assert 0 < case["step_ms"] <= case["step_ms_median"]
        assert case["calibration_ms"] > 0 and (case["runs"], case["steps"]) == (2, 5)


def test_host_for_people(tenon: Callable[..., Any]) -> None:
    ran = tenon("bench", "host", "--requests", 2, *SMALL)
    assert ran.code == 0 and "minimum of 2 runs of 5 steps" in ran.out


def test_host_refuses_a_case_twice(tenon: Callable[..., Any]) -> None:
    ran = tenon("bench", "host", "--requests", 2, "--requests", 2, *SMALL)
    assert ran.code == 2 and "names a case twice" in ran.err


@pytest.mark.null
def test_the_phases_make_up_the_step() -> None:
    from tenon_core.cli.bench.clock import PhaseClock
    from tenon_core.cli.bench.host_case import HostCase

    case = HostCase(requests=8, steps=20, runs=1, warmup=2, prompt_len=20)
    made = case._assemble()
    case._submit_all(made)
    for _ in range(5):
        made.engine.step()
    clock = PhaseClock.around(made.engine, made.runner)
    start = time.perf_counter()
    split = clock.run(made.engine.step, 20)
    whole = (time.perf_counter() - start) / 20
    assert sum(split.values()) == pytest.approx(whole, rel=0.2)
    case._check(made)


def test_latency_and_throughput(tenon: Callable[..., Any], tiny_model: Path) -> None:
    engine = ("--platform", "reference", "--num-blocks", 64, "--max-num-seqs", 4)
    found = tenon(
        "bench", "latency", tiny_model, *engine, "--batch-size", 2, "--input-len", 9, "--output-len", 4,
        "--num-iters", 2, "--num-iters-warmup", 1, "--json",
    ).json()  # fmt: skip
    assert len(found["latencies_ms"]) == 2
    assert 0 < found["mean_ttft_ms"] <= found["mean_latency_ms"]
    for engine_only in ((), ("--engine-only",)):
        found = tenon(
            "bench", "throughput", tiny_model, *engine, "--num-prompts", 6, "--input-len", 9, "--output-len", 5,
            "--warmups", 1, *engine_only, "--json",
        ).json()  # fmt: skip
        assert (found["total_input_tokens"], found["total_output_tokens"]) == (54, 30)
        assert found["output_tokens_per_second"] == pytest.approx(30 / found["elapsed_time"])
        assert 0 < found["mean_ttft_ms"] < 1e3 * found["elapsed_time"] and found["mean_tpot_ms"] > 0
        assert (found["mean_itl_ms"] is not None) == bool(engine_only)
        assert found["platform"].startswith("reference")


def test_throughput_of_a_file(tenon: Callable[..., Any], tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("hello\nyou there\n")
    found = tenon(
        "bench", "throughput", tiny_model, "--platform", "reference", "--num-blocks", 64, "--dataset-path",
        tmp_path / "prompts.txt", "--num-prompts", 3, "--output-len", 2, "--warmups", 0, "--json",
    ).json()  # fmt: skip
    assert found["total_input_tokens"] == 5 + 9 + 5  # bytes


def test_startup_tells_phases(tenon: Callable[..., Any], tiny_model: Path) -> None:
    found = tenon(
        "bench", "startup", tiny_model, "--platform", "reference", "--num-blocks", 64, "--runs", 1, "--json"
    ).json()
    run = found["runs"][0]
    assert {"interpreter", "imports", "load weights", "first request", "total"} <= set(run)
    assert sum(seconds for phase, seconds in run.items() if phase != "total") == pytest.approx(run["total"], rel=0.05)


@pytest.mark.e2e
def test_startup_of_the_server(tenon: Callable[..., Any], tiny_model: Path) -> None:
    ran = tenon(
        "bench", "startup", tiny_model, "--server", "--platform", "reference", "--num-blocks", 64, "--runs", 1, "--json"
    )  # fmt: skip
    assert ran.code == 0, ran.err
    run = ran.json()["runs"][0]
    assert run["ready"] > 0 < run["first request"] and run["ready"] + run["first request"] == pytest.approx(
        run["total"]
    )


def test_startup_passes_the_engines_error_on(tenon: Callable[..., Any]) -> None:
    ran = tenon("bench", "startup", "/no/such/model", "--runs", 1)
    assert ran.code == 2 and "/no/such/model" in ran.err and "remedy: " in ran.err


# workloads


def test_random_prompts_depend_on_the_seed_alone() -> None:
    make = lambda seed: Workload(num_prompts=5, input_len=20, output_len=8, spread=0.5, seed=seed).asks()  # noqa: E731
    assert make(1) == make(1) != make(2)
    assert all(10 <= len(ask.prompt) <= 30 and 4 <= ask.output_len <= 12 for ask in make(1))


@pytest.mark.parametrize(
    ("name", "text", "prompts"),
    [
        ("a.jsonl", '{"prompt": "one"}\n{"turns": ["two", "x"]}\n{"question": "three"}\n', ["one", "two", "three"]),
        ("a.json", json.dumps([{"conversations": [{"from": "human", "value": "hi"}]}, "bare"]), ["hi", "bare"]),
        ("a.txt", "one\n\ntwo\n", ["one", "two"]),
    ],
)
def test_prompts_from_files(tmp_path: Path, name: str, text: str, prompts: list[str]) -> None:
    (tmp_path / name).write_text(text)
    asks = Workload(num_prompts=4, input_len=1, output_len=7, dataset=tmp_path / name).asks()
    assert [ask.prompt for ask in asks] == [prompts[index % len(prompts)] for index in range(4)]
    assert {ask.output_len for ask in asks} == {7}


def test_a_trace_keeps_its_times(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,374,44\n2023-11-16 18:15:48.25,3,10\n"
    )
    asks = Workload(num_prompts=2, input_len=1, output_len=1, dataset=trace).asks()
    assert [(len(ask.prompt), ask.output_len, ask.at) for ask in asks] == [(374, 44, 0.0), (3, 10, 1.75)]
    assert Pace(rate=float("inf")).times(asks) == [0.0, 1.75]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.jsonl", "{", "is not valid JSON"),
        ("a.jsonl", '{"foo": 1}', "entry 0 has no prompt"),
        ("a.json", "{}", "no list"),
        ("a.txt", "\n", "holds no prompts"),
        ("a.csv", "A,B\n1,2\n", "line 2 is no trace entry"),
        ("a.xml", "<x/>", "expected one of"),
    ],
)
def test_bad_datasets(tmp_path: Path, name: str, text: str, told: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=told):
        Workload(num_prompts=1, input_len=1, output_len=1, dataset=tmp_path / name).asks()


# figures


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0.1, 99.9))
def test_percentile_is_numpys(values: list[float], share: float) -> None:
    import numpy as np

    assert percentile(values, share) == pytest.approx(float(np.percentile(values, share)), rel=1e-9, abs=1e-6)


def test_descriptions() -> None:
    found = describe("x", [0.001, 0.003], (50,))
    assert (found["mean_x"], found["median_x"], found["std_x"], found["p50_x"]) == pytest.approx((2.0, 2.0, 1.0, 2.0))
    assert describe("x", [], (99,)) == {"mean_x": None, "median_x": None, "std_x": None, "p99_x": None}
    assert math.isnan(percentile([], 50))
    with pytest.raises(ConfigError, match="expected numbers"):
        parse_percentiles("half")
    with pytest.raises(ConfigError, match="between 0 and 100"):
        parse_percentiles("100")


@pytest.mark.parametrize(("size", "least", "greatest"), [(32000, 100, 1000), (257, 100, 257), (150, 0, 150)])
def test_random_ids_lie_in_the_vocabulary(size: int, least: int, greatest: int) -> None:
    workload = random_ids(Workload(num_prompts=20, input_len=500, output_len=1), size)
    ids = {index for ask in workload.asks() for index in ask.prompt}
    assert min(ids) == least and max(ids) == greatest - 1


def test_arrival_times() -> None:
    asks = [Ask(prompt="x", output_len=1)] * 4000
    times = Pace(rate=10.0, seed=3).times(asks)
    assert times[0] == 0 and times == sorted(times)
    assert times[-1] / len(times) == pytest.approx(0.1, rel=0.1)
    steady = Pace(rate=10.0, burstiness=1000.0).times(asks[:50])
    assert all(late - early == pytest.approx(0.1, rel=0.3) for early, late in itertools.pairwise(steady))


# load


class FakeServer(BaseHTTPRequestHandler):
    """Streams `max_tokens` pieces 10 ms apart; a prompt of [500] fails with that status, [0] ends at once."""

    most = 0
    current = 0
    lock = threading.Lock()

    def do_GET(self) -> None:
        self._json({"data": [{"id": "fake"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            FakeServer.current += 1
            FakeServer.most = max(FakeServer.most, FakeServer.current)
        try:
            self._answer(body)
        finally:
            with self.lock:
                FakeServer.current -= 1

    def _answer(self, body: dict[str, Any]) -> None:
        prompt = body.get("prompt", [1])
        if prompt == [500]:
            self._json({"error": {"message": "boom"}}, status=500)
            return
        count = 0 if prompt == [0] else body["max_tokens"]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for index in range(count):
            time.sleep(0.01)
            choice = {"delta": {"content": f"{index} "}} if "messages" in body else {"text": f"{index} "}
            self._event({"choices": [choice]})
        self._event({"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": count}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, data: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")
        self.wfile.flush()

    def _json(self, data: dict[str, Any], status: int = 200) -> None:
        text = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    held = ThreadingHTTPServer(("127.0.0.1", 0), FakeServer)
    thread = threading.Thread(target=held.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{held.server_port}"
    held.shutdown()
    held.server_close()


def target(url: str, **more: Any) -> Target:
    return Target(**{"base_url": url, "endpoint": "/v1/completions", "model": "fake", **more})


def test_answers_are_timed(server: str) -> None:
    asks = [Ask(prompt=[1, 2, 3], output_len=5)] * 3
    answers, seconds = asyncio.run(run_load(target(server), asks, Pace(rate=float("inf"))))
    for answer in answers:
        assert answer.error is None
        assert (answer.num_prompt, answer.num_output, len(answer.gaps)) == (3, 5, 4)
        assert answer.first is not None and answer.seconds_per_token is not None
        assert 0.005 < answer.first < answer.ended - answer.started <= seconds
        assert answer.seconds_per_token == pytest.approx(sum(answer.gaps) / 4, rel=0.05)


def test_failures_are_counted_not_raised(server: str) -> None:
    asks = [Ask(prompt=[500], output_len=2), Ask(prompt=[0], output_len=2), Ask(prompt=[1], output_len=2)]
    answers, _ = asyncio.run(run_load(target(server), asks, Pace(rate=float("inf"))))
    assert [answer.error for answer in answers[1:]] == ["the stream ended without a token", None]
    assert answers[0].error is not None and answers[0].error.startswith("HTTP 500") and "boom" in answers[0].error


def test_concurrency_is_kept(server: str) -> None:
    FakeServer.most = 0
    asks = [Ask(prompt=[1], output_len=3)] * 8
    asyncio.run(run_load(target(server), asks, Pace(rate=float("inf"), concurrency=2)))
    assert FakeServer.most == 2


def test_chat_takes_text_only(server: str) -> None:
    chat = target(server, endpoint="/v1/chat/completions")
    answers, _ = asyncio.run(run_load(chat, [Ask(prompt="hello", output_len=2)], Pace(rate=float("inf"))))
    assert answers[0].error is None and answers[0].num_output == 2
    with pytest.raises(ConfigError, match="takes text"):
        chat.body(Ask(prompt=[1], output_len=2))


def test_bench_serve(tenon: Callable[..., Any], server: str, tmp_path: Path) -> None:
    saved = tmp_path / "result.json"
    ran = tenon(
        "bench", "serve", "--base-url", f"{server}/v1", "--num-prompts", 4, "--input-len", 6, "--output-len", 3,
        "--request-rate", 200, "--save-result", saved, "--json",
    )  # fmt: skip
    found = ran.json()
    assert ran.code == 0 and json.loads(saved.read_text()) == found
    assert (found["model"], found["completed"], found["failed"]) == ("fake", 4, 0)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (24, 12)
    assert found["output_throughput"] == pytest.approx(12 / found["duration"])
    for metric in ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms"):
        assert 0 < found[f"median_{metric}"] <= found[f"p99_{metric}"]
    assert "TTFT" in tenon("bench", "serve", "--base-url", server, "--num-prompts", 1, "--output-len", 2).out


def test_bench_serve_without_a_server(tenon: Callable[..., Any]) -> None:
    ran = tenon("bench", "serve", "--base-url", "http://127.0.0.1:9")
    assert ran.code == 2 and "no OpenAI server answers at http://127.0.0.1:9" in ran.err


def test_send_gives_up_at_its_timeout(server: str) -> None:
    import httpx

    async def one() -> Any:
        async with httpx.AsyncClient(timeout=0.05) as client:
            return await send(client, target("http://10.255.255.1:9"), Ask(prompt=[1], output_len=1))

    assert asyncio.run(one()).error is not None
