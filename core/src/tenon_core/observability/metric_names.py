"""The names of all metrics, what they say, and under which names this field's dashboards know them already.

Plain data: importing it loads no metrics library.
"""

from __future__ import annotations

FINISH_REASONS = ("stop", "length", "abort", "error")
LABEL = "model_name"
PREFIX, ALIAS_PREFIX = "tenon:", "vllm:"

# Gauges and counters taken from the engine's snapshot: metric -> (snapshot's field, help).
GAUGES = {
    "num_requests_running": ("num_running", "Sequences with a row in the running batch."),
    "num_requests_waiting": ("num_waiting", "Requests waiting for a row."),
    "num_blocks": ("num_blocks", "KV blocks of the pool."),
    "num_free_blocks": ("num_free_blocks", "KV blocks that no running sequence holds."),
}
COUNTERS = {
    "engine_steps": ("num_steps", "Steps the engine launched."),
    "num_preemptions": ("num_preemptions", "Sequences that gave their blocks up to be computed again."),
    "prompt_tokens": ("num_prompt_tokens", "Prompt tokens submitted."),
    "generation_tokens": ("num_generated_tokens", "Tokens generated."),
    "prefix_cache_queries": ("num_prefix_queries", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("num_prefix_hits", "Prompt tokens found in the prefix cache."),
    "compiles_after_ready": ("num_compiles_after_ready", "Compilations after the engine was ready; should stay 0."),
}
USAGE = ("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.")
CACHE = ("cache_config_info", "How the KV cache is laid out; always 1.")
CACHE_LABELS = {"block_size": "block_size", "num_blocks": "num_gpu_blocks"}  # ours -> as the alias calls them
STEP_TOKENS = ("step_tokens", "Tokens of a step, of prompts and of outputs.")

TOKENS_OF_A_STEP = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
TOKENS_OF_A_REQUEST = tuple(float(2**power) for power in range(18))
SAMPLES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
SECONDS_TO_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
SECONDS_BETWEEN_TOKENS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
SECONDS_OF_A_REQUEST = (
    0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip

# What a front end measures itself: metric -> (help, buckets).
HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("From arrival to the first token.", SECONDS_TO_FIRST_TOKEN),
    "inter_token_latency_seconds": ("Between two tokens of a sequence.", SECONDS_BETWEEN_TOKENS),
    "request_time_per_output_token_seconds": (
        "A request's mean time a token, the first one apart.", SECONDS_BETWEEN_TOKENS,
    ),
    "e2e_request_latency_seconds": ("From arrival to the end.", SECONDS_OF_A_REQUEST),
    "request_queue_time_seconds": ("From arrival in the engine until a request ran.", SECONDS_OF_A_REQUEST),
    "request_inference_time_seconds": ("From when a request ran to its end.", SECONDS_OF_A_REQUEST),
    "request_prefill_time_seconds": ("From when a request ran to its first token.", SECONDS_OF_A_REQUEST),
    "request_decode_time_seconds": ("From a request's first token to its end.", SECONDS_OF_A_REQUEST),
    "request_prompt_tokens": ("Prompt tokens of a request.", TOKENS_OF_A_REQUEST),
    "request_prefill_kv_computed_tokens": (
        "Prompt tokens of a request that were not found in the prefix cache.", TOKENS_OF_A_REQUEST,
    ),
    "request_generation_tokens": ("Tokens of a request's output.", TOKENS_OF_A_REQUEST),
    "request_max_num_generation_tokens": ("Tokens of a request's longest sample.", TOKENS_OF_A_REQUEST),
    "request_params_max_tokens": ("The limit of tokens that a request has.", TOKENS_OF_A_REQUEST),
    "request_params_n": ("Samples that a request asks for.", SAMPLES),
}  # fmt: skip
ENDS, REFUSED, UP, ASLEEP = "request_success", "requests_refused", "engine_up", "engine_asleep"
POOLS = ("weights", "kv_cache")  # of device memory, which sleep gives back
COUNTED_HERE = (*HISTOGRAMS, ENDS, REFUSED)  # by each front end; the rest is the engine's, the same in all

SAME_NAME = (
    *HISTOGRAMS, ENDS, USAGE[0], CACHE[0], "num_requests_running", "num_requests_waiting", "num_preemptions",
    "prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits",
)  # fmt: skip
OTHER_NAMES = {
    STEP_TOKENS[0]: ("iteration_tokens_total",),
    "prefix_cache_hits": ("prompt_tokens_cached", "gpu_prefix_cache_hits"),
    "prefix_cache_queries": ("gpu_prefix_cache_queries",),
    USAGE[0]: ("gpu_cache_usage_perc",),
    "inter_token_latency_seconds": ("time_per_output_token_seconds",),
}
# Ours -> the names of the same thing elsewhere, older ones among them. What is not here exists under `tenon:` only.
ALIASES: dict[str, tuple[str, ...]] = {
    f"{PREFIX}{name}": tuple(
        f"{ALIAS_PREFIX}{other}" for other in (*((name,) if name in SAME_NAME else ()), *OTHER_NAMES.get(name, ()))
    )
    for name in dict.fromkeys((*SAME_NAME, *OTHER_NAMES))
}
