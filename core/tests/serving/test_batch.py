"""Batch files over a fake engine process: answers, bad lines, an output taken up again, memory, an end by a signal."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from running_server import FOLDER

from tenon_core.client import engine_process
from tenon_core.config import EngineConfig
from tenon_core.serving import batch, batch_file
from tenon_core.serving.batch import Tally, run_batch
from tenon_core.serving.config import ServerConfig
from tenon_platforms.errors import ConfigError

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def _fake_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    original = engine_process.EngineProcess.__init__
    command = (sys.executable, str(FOLDER / "fake_process.py"))
    monkeypatch.setattr(engine_process.EngineProcess, "__init__", lambda self, _=(): original(self, command))


def line(name: str, text: str = "abc", url: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    given = {"prompt": text, "max_tokens": 4, **body}
    return {"custom_id": name, "method": "POST", "url": url, "body": given}


def chat(name: str) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}


def run(folder: Path, lines: list[Any], place: Path, **options: Any) -> tuple[int, Tally, list[dict[str, Any]]]:
    source, output = place / "in.jsonl", place / "out.jsonl"
    source.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))
    code, tally = run_batch(
        EngineConfig.from_flat(model=str(folder)), ServerConfig(served_model_name=("fake",), **options), source, output
    )
    return code, tally, records(output)


def records(output: Path) -> list[dict[str, Any]]:
    return [json.loads(one) for one in output.read_text().splitlines()]


def test_every_line_has_its_answer(folder: Path, tmp_path: Path) -> None:
    lines = [line(f"c{i}", f"text {i}", max_tokens=6) for i in range(100)] + [chat("chat"), line("bad", max_tokens=-1)]
    code, tally, found = run(folder, [*lines, "", line("wrong model", model="other")], tmp_path)
    assert code == 0 and (tally.num_ok, tally.num_refused, tally.num_bad) == (101, 2, 0)
    by_id = {one["custom_id"]: one for one in found}
    assert len(by_id) == len(found) == 103 and len({one["id"] for one in found}) == 103
    for i in range(100):
        record = by_id[f"c{i}"]
        assert record["error"] is None and record["response"]["status_code"] == 200
        assert record["response"]["body"]["choices"][0]["text"] == f"text {i}"[:6]
    assert by_id["chat"]["response"]["body"]["object"] == "chat.completion" and by_id["chat"]["response"]["request_id"]
    assert by_id["bad"]["response"]["status_code"] == 400
    assert by_id["bad"]["response"]["body"]["error"]["param"] == "max_tokens"
    assert by_id["wrong model"]["response"]["status_code"] == 404


BAD = (
    ("{", None),
    ("[]", None),
    ('{"custom_id": 1}', None),
    ('{"custom_id": ""}', None),
    ({**line("a"), "method": "GET"}, "a"),
    ({**line("b"), "url": "/v1/nothing"}, "b"),
    ({**line("c"), "url": "http://169.254.169.254/v1/completions"}, "c"),
    ({**line("d"), "url": "/metrics"}, "d"),
    ({**line("s"), "url": "/sleep"}, "s"),
    ({**line("w"), "url": "/wake_up"}, "w"),
    ({**line("e"), "body": []}, "e"),
    ({**line("f"), "extra": 1}, "f"),
    (line("g", stream=True), "g"),
    (line("h", background=True), "h"),
    ('{"custom_id": "h", "custom_id": "i"}', None),
    ("[" * 100_000, None),
    ('{"custom_id": "' + "j" * 600 + '"}', None),
    (line("big", "x" * 5000), None),
    ('{"custom_id": "n", "url": "/v1/completions", "body": {"prompt": "x", "temperature": NaN}}', None),
)


def test_bad_lines_get_records(folder: Path, tmp_path: Path) -> None:
    lines = [one for one, _ in BAD]
    code, tally, found = run(folder, [*lines, line("good"), line("good")], tmp_path, max_body_bytes=4000)
    assert code == 0 and (tally.num_ok, tally.num_refused, tally.num_bad) == (1, 0, len(BAD) + 1)
    by_line = {one["error"]["line"]: one for one in found if one["error"] is not None}
    for place, (_, name) in enumerate(BAD, start=1):
        assert by_line[place]["response"] is None and by_line[place]["custom_id"] == name, BAD[place - 1]
        assert len(by_line[place]["error"]["message"]) < 600 and by_line[place]["error"]["code"].startswith("invalid_")
    assert "came before" in by_line[len(BAD) + 2]["error"]["message"]
    again = run(folder, [*lines, line("good"), line("good")], tmp_path, max_body_bytes=4000)
    assert again[1].num_done == 0 and again[2] == found, "the second run writes nothing"


SALT = {"cache_salt": "a\nb"}
REFUSED = (
    {"max_tokens": 0}, {"n": 10**9}, {"temperature": 1e308}, {"top_p": -1}, {"stop": ["x"] * 1000}, {"logprobs": 10**6},
    {"prompt": [5, 270]}, {"prompt": [-1]}, {"prompt": []}, {"prompt": ["x"] * 1000}, {"stop_token_ids": [2**31]},
    {"prompt_embeds": "gASVAAAA"}, {"kv_transfer_params": {"a": 1}}, {"mm_processor_kwargs": {"a": 1}}, SALT,
    {"structured_outputs": {"regex": "("}}, {"chat_template": "{{ 1 }}"}, {"no_such_field": 1},
    {"logit_bias": {"a": 1}},
)  # fmt: skip


def test_a_line_is_checked_as_a_request_is(folder: Path, tmp_path: Path) -> None:
    """T45: cases of T19, T21 to T24, T26, T27 and T29 as lines."""
    lines = [line(f"c{place}", **one) for place, one in enumerate(REFUSED)]
    code, tally, found = run(folder, [*lines, line("good")], tmp_path)
    assert code == 0 and (tally.num_ok, tally.num_refused, tally.num_bad) == (1, len(REFUSED), 0)
    by_id = {one["custom_id"]: one["response"] for one in found}
    for place, one in enumerate(REFUSED):
        answer = by_id[f"c{place}"]
        assert answer["status_code"] == 400 and next(iter(one)) in str(answer["body"]["error"]), (one, answer)


def test_bytes_that_are_no_text(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b'{"custom_id": "\xff\xfe"}\n\x00\n' + json.dumps(line("a")).encode())  # no newline
    config = EngineConfig.from_flat(model=str(folder))
    code, tally = run_batch(config, ServerConfig(), tmp_path / "in", tmp_path / "out")
    assert code == 0 and (tally.num_ok, tally.num_bad) == (1, 2)


def test_an_output_is_taken_up(folder: Path, tmp_path: Path) -> None:
    lines = [line(f"c{i}", f"text {i}") for i in range(30)]
    _, _, first = run(folder, lines, tmp_path)
    output = tmp_path / "out.jsonl"
    kept = output.read_bytes().splitlines(keepends=True)
    output.write_bytes(b"".join(kept[:10]) + kept[10][:25])  # as a kill leaves it
    _, tally, found = run(folder, lines, tmp_path)
    assert (tally.num_ok, tally.num_skipped) == (20, 10)
    assert found[:10] == first[:10] and {one["custom_id"] for one in found} == {f"c{i}" for i in range(30)}
    assert len(found) == 30


@pytest.mark.parametrize("content", ["not json\n", '{"a": 1}\n', "[]\n"])
def test_a_foreign_output_is_not_touched(folder: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "out.jsonl").write_text(content)
    with pytest.raises(ConfigError, match="something else"):
        run(folder, [line("a")], tmp_path)
    assert (tmp_path / "out.jsonl").read_text() == content


def test_wrong_files_are_told(folder: Path, tmp_path: Path) -> None:
    config = EngineConfig.from_flat(model=str(folder))
    with pytest.raises(ConfigError, match="cannot be read"):
        run_batch(config, ServerConfig(), tmp_path / "none", tmp_path / "out")
    (tmp_path / "in").write_text("")
    with pytest.raises(ConfigError, match="same file"):
        run_batch(config, ServerConfig(), tmp_path / "in", tmp_path / "in")
    with pytest.raises(ConfigError, match="cannot be written"):
        run_batch(config, ServerConfig(), tmp_path / "in", tmp_path / "no" / "folder")


def test_a_broken_model_ends_it(tmp_path: Path) -> None:
    from fake_model import model_folder

    (tmp_path / "in").write_text(json.dumps(line("a")) + "\n")
    config = EngineConfig.from_flat(model=str(model_folder(tmp_path / "broken")))
    with pytest.raises(ConfigError, match="fake model is broken"):
        run_batch(config, ServerConfig(), tmp_path / "in", tmp_path / "out")


def test_a_signal_ends_it_and_it_goes_on_later(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line(f"c{i}", "a" * 50, max_tokens=40) for i in range(400)]
    output = tmp_path / "out.jsonl"

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (not output.exists() or output.stat().st_size < 2000):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    code, tally, found = run(folder, lines, tmp_path)
    thread.join()
    assert code == 130 and 0 < tally.num_ok < 400 and len(found) == tally.num_ok
    code, tally, found = run(folder, lines, tmp_path)
    assert code == 0 and len({one["custom_id"] for one in found}) == len(found) == 400


def test_memory_does_not_grow_with_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Reading, looking up and recording, without an engine: 100,000 lines of 1 KB."""
    source = tmp_path / "in"
    with source.open("w") as file:
        for i in range(100_000):
            file.write(json.dumps(line(f"c{i}", "x" * 900)) + "\n")
    before = psutil.Process().memory_info().rss
    with batch_file.BatchOutput(path=tmp_path / "out") as output, source.open("rb") as lines:
        for number, one in batch_file.read_lines(lines, 2**20):
            request = batch_file.parse_line(number, one, batch.URLS)
            assert not output.has(request.custom_id, number)
            output.write(request.custom_id, line=number, response={"status_code": 200, "body": "x" * 900})
    assert psutil.Process().memory_info().rss - before < 40 * 2**20


def test_embeddings_are_lines_too(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_POOLING", "pool")
    texts = [f"text {place}" for place in range(40)]
    lines: list[Any] = [
        {"custom_id": text, "method": "POST", "url": "/v1/embeddings", "body": {"input": text, "dimensions": 4}}
        for text in texts
    ]
    lines.append({"custom_id": "two", "method": "POST", "url": "/v1/embeddings", "body": {"input": ["a", "text 7"]}})
    lines.append({"custom_id": "bad", "method": "POST", "url": "/v1/embeddings", "body": {"input": []}})
    lines.append(line("generates"))
    code, tally, found = run(folder, lines, tmp_path)
    assert code == 0 and (tally.num_ok, tally.num_refused, tally.num_bad) == (41, 2, 0)
    by_id = {one["custom_id"]: one for one in found}
    assert len(by_id) == 43
    for text in texts:
        body = by_id[text]["response"]["body"]
        (data,) = body["data"]
        assert body["usage"]["prompt_tokens"] == len(text) and len(data["embedding"]) == 4
        assert sum(one * one for one in data["embedding"]) == pytest.approx(1, abs=1e-5)
    vectors = {tuple(by_id[text]["response"]["body"]["data"][0]["embedding"]) for text in texts}
    assert len(vectors) > 30, "each line has its own vector"
    two = [one["embedding"] for one in by_id["two"]["response"]["body"]["data"]]
    assert len(two) == 2 and len(two[0]) == 8
    assert by_id["bad"]["response"]["status_code"] == by_id["generates"]["response"]["status_code"] == 400
