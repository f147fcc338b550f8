"""Logs that nobody can forge, and metrics with closed label sets under both families of names."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tenon_core.engine.messages import EngineStats
from tenon_core.observability.log import MAX_CHARACTERS, current_format, escaped, setup_logging
from tenon_core.observability.metric_names import ALIASES, FINISH_REASONS, TOKENS_OF_A_STEP
from tenon_core.observability.metrics import EngineMetrics
from tenon_core.observability.request_end import RequestEnd

pytestmark = pytest.mark.unit
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} [A-Z]+ [\w.]+: .*")
STATS = EngineStats(
    num_running=3,
    num_waiting=2,
    num_blocks=100,
    num_free_blocks=75,
    num_steps=10,
    num_preemptions=1,
    num_prompt_tokens=50,
    num_generated_tokens=40,
    num_prefix_queries=30,
    num_prefix_hits=20,
    num_compiles_after_ready=0,
    num_scheduled_tokens=27,
    num_steps_by_size=(8, 1, 0, 1, *[0] * (len(TOKENS_OF_A_STEP) - 3)),
)
END = RequestEnd(
    seconds=1.2, queued_seconds=0.05, first_token_after=0.2, num_prompt=10, num_cached=4, num_outputs=[3, 2],
    max_tokens=8,
)  # fmt: skip
# What vLLM's own dashboards and the autoscalers and routers of this field ask for, as read in its repository and its
# documentation (0.9 to 0.32); a name that went out of use is asked for by dashboards that are older.
GAUGES_ELSEWHERE = (
    "cache_config_info", "gpu_cache_usage_perc", "kv_cache_usage_perc", "num_requests_running", "num_requests_waiting",
)  # fmt: skip
COUNTERS_ELSEWHERE = (
    "generation_tokens", "gpu_prefix_cache_hits", "gpu_prefix_cache_queries", "num_preemptions", "prefix_cache_hits",
    "prefix_cache_queries", "prompt_tokens", "prompt_tokens_cached", "request_success",
)  # fmt: skip
HISTOGRAMS_ELSEWHERE = (
    "e2e_request_latency_seconds", "inter_token_latency_seconds", "iteration_tokens_total",
    "request_decode_time_seconds", "request_generation_tokens", "request_inference_time_seconds",
    "request_max_num_generation_tokens", "request_params_max_tokens", "request_params_n",
    "request_prefill_kv_computed_tokens", "request_prefill_time_seconds", "request_prompt_tokens",
    "request_queue_time_seconds", "request_time_per_output_token_seconds", "time_per_output_token_seconds",
    "time_to_first_token_seconds",
)  # fmt: skip


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    held = io.StringIO()
    yield held
    root.handlers[:], root.level = before, level
    logging.captureWarnings(False)


def test_one_line_whatever_is_logged(stream: io.StringIO) -> None:
    setup_logging("info", stream=stream)
    logging.getLogger("tenon_core.x").info("id %s", "a\r\n2026-01-01 00:00:00.000 INFO root: forged\x1b[2J\x00\u202e")
    (line,) = stream.getvalue().splitlines()
    assert LINE.fullmatch(line)
    assert "\\r\\n" in line and "\\x1b[2J\\x00\\u202e" in line


def test_length_is_capped(stream: io.StringIO) -> None:
    setup_logging("info", stream=stream)
    logging.getLogger("tenon_core").info("%s", "x" * 1_000_000)
    assert len(stream.getvalue()) < MAX_CHARACTERS + 200
    assert f"({1_000_000 - MAX_CHARACTERS} more characters)" in stream.getvalue()
    assert escaped("short") == "short"


def test_tracebacks_cannot_forge_lines(stream: io.StringIO) -> None:
    setup_logging("info", stream=stream)
    try:
        raise ValueError("x\n2026-01-01 00:00:00.000 INFO tenon_core: forged")
    except ValueError:
        logging.getLogger("tenon_core").exception("it failed")
    first, *rest = stream.getvalue().splitlines()
    assert LINE.fullmatch(first) and rest
    assert all(line.startswith("    | ") for line in rest)


def test_levels_and_other_libraries(stream: io.StringIO) -> None:
    setup_logging("warning", stream=stream)
    setup_logging("debug", stream=stream)  # the last call holds, and does not double lines
    logging.getLogger("tenon_plugin.deep").debug("ours")
    logging.getLogger("httpx").info("theirs")
    logging.getLogger("httpx").warning("their warning")
    assert [line.rpartition(": ")[2] for line in stream.getvalue().splitlines()] == ["ours", "their warning"]
    with pytest.raises(ValueError, match="loud"):
        setup_logging("loud", stream=stream)


def scraped(metrics: EngineMetrics) -> dict[str, float]:
    """`name{label=value,...}` -> value of everything that is rendered."""
    body, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    return {
        f"{sample.name}{sorted((k, v) for k, v in sample.labels.items() if k != 'model_name')}": sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def test_a_snapshot_is_told_under_both_names() -> None:
    metrics = EngineMetrics("m")
    metrics.take_snapshot(STATS)
    found = scraped(metrics)
    for prefix in ("tenon", "vllm"):
        assert found[f"{prefix}:num_requests_running[]"] == 3
        assert found[f"{prefix}:num_requests_waiting[]"] == 2
        assert found[f"{prefix}:kv_cache_usage_perc[]"] == 0.25
        assert found[f"{prefix}:prompt_tokens_total[]"] == 50
        assert found[f"{prefix}:generation_tokens_total[]"] == 40
        assert found[f"{prefix}:prefix_cache_hits_total[]"] == 20
        assert found[f"{prefix}:num_preemptions_total[]"] == 1
    assert found["tenon:engine_steps_total[]"] == 10


def test_requests_fill_histograms_under_both_names() -> None:
    metrics = EngineMetrics("m")
    metrics.first_token(0.2)
    metrics.next_token(0.06, count=2)
    metrics.ended("length", END)
    metrics.refused()
    metrics.set_up(True)
    found = scraped(metrics)
    sums = {
        "inter_token_latency_seconds": 0.06, "request_time_per_output_token_seconds": 0.25,
        "e2e_request_latency_seconds": 1.2, "request_queue_time_seconds": 0.05, "request_inference_time_seconds": 1.15,
        "request_prefill_time_seconds": 0.15, "request_decode_time_seconds": 1.0, "request_prompt_tokens": 10,
        "request_prefill_kv_computed_tokens": 6, "request_generation_tokens": 5,
        "request_max_num_generation_tokens": 3, "request_params_max_tokens": 8, "request_params_n": 2,
    }  # fmt: skip
    for prefix in ("tenon", "vllm"):
        assert found[f"{prefix}:time_to_first_token_seconds_count[]"] == 1
        assert found[f"{prefix}:inter_token_latency_seconds_count[]"] == 2
        assert {name: found[f"{prefix}:{name}_sum[]"] for name in sums} == pytest.approx(sums)
        assert found[f"{prefix}:request_success_total[('finished_reason', 'length')]"] == 1
        assert found[f"{prefix}:request_success_total[('finished_reason', 'stop')]"] == 0
    assert found["tenon:requests_refused_total[]"] == 1 and found["tenon:engine_up[]"] == 1


def test_steps_are_told_by_their_size() -> None:
    metrics = EngineMetrics("m")
    metrics.take_snapshot(STATS)
    metrics.set_block_size(16)
    found = scraped(metrics)
    for name in ("tenon:step_tokens", "vllm:iteration_tokens_total"):
        assert (found[f"{name}_count[]"], found[f"{name}_sum[]"]) == (10, 27)
        buckets = [found[f"{name}_bucket[('le', '{bound}')]"] for bound in ("1.0", "8.0", "16.0", "32.0", "+Inf")]
        assert buckets == [8, 9, 9, 10, 10]
    assert found["tenon:cache_config_info[('block_size', '16'), ('num_blocks', '100')]"] == 1
    assert found["vllm:cache_config_info[('block_size', '16'), ('num_gpu_blocks', '100')]"] == 1


def test_what_other_dashboards_ask_for_is_there() -> None:
    metrics = EngineMetrics("m")
    metrics.take_snapshot(STATS)
    metrics.set_block_size(16)
    names = {name.partition("[")[0] for name in scraped(metrics)}
    asked = {*GAUGES_ELSEWHERE, *(f"{name}_total" for name in COUNTERS_ELSEWHERE)}
    asked |= {f"{name}_{part}" for name in HISTOGRAMS_ELSEWHERE for part in ("bucket", "sum", "count")}
    assert {f"vllm:{name}" for name in asked} <= names


def test_the_number_of_series_does_not_grow() -> None:
    metrics = EngineMetrics("m")
    metrics.take_snapshot(STATS)
    before = set(scraped(metrics))
    for reason in FINISH_REASONS:
        metrics.ended(reason, RequestEnd(seconds=1, num_prompt=1, num_outputs=[0]))
    metrics.first_token(1)
    metrics.next_token(1)
    assert set(scraped(metrics)) == before
    with pytest.raises(ValueError, match="weird"):
        metrics.ended("weird", END)


def test_every_alias_has_its_original() -> None:
    metrics = EngineMetrics("m")
    metrics.take_snapshot(STATS)
    metrics.set_block_size(16)
    names = {family.name for family in metrics.registry.collect()}
    assert set(ALIASES) | {one for each in ALIASES.values() for one in each} <= names
    assert all(name.startswith(("tenon:", "vllm:")) for name in names)
    assert not [name for name in scraped(metrics) if "_created" in name]


def test_lines_as_json(stream: io.StringIO) -> None:
    setup_logging("info", stream=stream, format="json")
    log = logging.getLogger("tenon_core.x")
    log.info("id %s", "a\r\nb\x1b", extra={"fields": {"status": 200, "path": "/\n", "message": "forged"}})
    try:
        raise ValueError("x\n{}")
    except ValueError:
        log.exception("it failed")
    first, second = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert first["message"] == "id a\\r\\nb\\x1b" and first["status"] == 200 and first["path"] == "/\\n"
    assert first["level"] == "INFO" and first["time"].endswith("Z") and first["logger"] == "tenon_core.x"
    assert second["traceback"].endswith("ValueError: x\n{}")
    assert current_format() == "json"
    setup_logging("info", stream=stream)  # and back: one handler, of the last format
    assert current_format() == "text"
    with pytest.raises(ValueError, match="format"):
        setup_logging("info", format="xml")
