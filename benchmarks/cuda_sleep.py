"""Sleep and wake on one card: what is given back, how long it takes, and that tokens and speed stay.

    python benchmarks/cuda_sleep.py [--models llama-3.1-8b,qwen3-0.6b] [--quantize none,fp8] [--opt KEY=VALUE]

Greedy tokens of 16 requests, undisturbed; then the same with the engine put to sleep in their midst, for each of the
pools alone and all together. Random weights; FP8's and bfloat16's sums depend on the batch, so the first difference
is told as the number of tokens that were equal before it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from checkout import use_checkout

use_checkout()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from cuda import Bench, values_of  # noqa: E402
from cuda_cases import MODELS  # noqa: E402

from tenon_core.engine.messages import GenerateRequest  # noqa: E402
from tenon_core.sampling.params import SamplingParams  # noqa: E402
from tenon_platforms.pools import Pool  # noqa: E402

REQUESTS, PROMPT, OUTPUT, BEFORE = 16, 128, 256, 60  # tokens; steps before it falls asleep
GIB = 2**30


def used() -> float:
    """GiB in use on the card, by whomever."""
    free, total = torch.cuda.mem_get_info()
    return (total - free) / GIB


def resident() -> float:
    """GiB of this process in the host's memory."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / GIB
    return float("nan")


def run(bench: Bench, model: str, first_id: int, pools: tuple[Pool, ...] = ()) -> tuple[dict[int, list[int]], float]:
    """(tokens by request, output tokens a second without the sleep) of the same requests; asleep in their midst."""
    engine, random = bench.assembled.engine, np.random.default_rng(7)
    tokens: dict[int, list[int]] = {}
    asleep = 0.0
    with engine.loop():
        began = time.perf_counter()
        for number in range(REQUESTS):
            prompt = random.integers(0, MODELS[model]["vocab_size"], PROMPT).astype("<i4").tobytes()
            params = SamplingParams(temperature=0.0, seed=number, max_tokens=OUTPUT, ignore_eos=True)
            engine.submit(GenerateRequest(id=first_id + number, prompt=prompt, params=params))
        steps = 0
        while engine.has_work():
            update = engine.step()
            steps += 1
            if update is not None:
                keys = np.frombuffer(update.keys, np.int64) >> 16
                for key, token in zip(keys.tolist(), np.frombuffer(update.tokens, np.int32).tolist(), strict=True):
                    tokens.setdefault(key - first_id, []).append(token)
            if pools and steps == BEFORE:
                start = time.perf_counter()
                rest(bench, pools)
                asleep = time.perf_counter() - start
        seconds = time.perf_counter() - began - asleep
    engine.reset_prefix_cache()
    return tokens, REQUESTS * OUTPUT / seconds


def rest(bench: Bench, pools: tuple[Pool, ...]) -> None:
    """Asleep, and awake again, with what it took."""
    engine, before = bench.assembled.engine, used()
    start = time.perf_counter()
    given_back = engine.sleep(pools)
    slept = time.perf_counter()
    during, host = used(), resident()
    woken = time.perf_counter()
    engine.wake(pools)
    torch.cuda.synchronize()
    print(
        f"  {'+'.join(pools)}: {given_back / GIB:.2f} GiB given back in {slept - start:.2f} s, woken up in"
        f" {time.perf_counter() - woken:.2f} s; card {before:.2f} -> {during:.2f} -> {used():.2f} GiB, host"
        f" {host:.2f} GiB asleep",
        flush=True,
    )


def equal(one: dict[int, list[int]], other: dict[int, list[int]]) -> str:
    """How many tokens are equal from the start of each request."""
    lengths = [
        next((place for place, pair in enumerate(zip(one[key], other[key], strict=True)) if pair[0] != pair[1]), OUTPUT)
        for key in one
    ]
    return f"{sum(length == OUTPUT for length in lengths)} of {len(lengths)} equal, the least {min(lengths)} tokens"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="llama-3.1-8b,qwen3-0.6b")
    parser.add_argument("--quantize", default="none,fp8")
    parser.add_argument("--opt", action="append", default=[], help="KEY=VALUE, an option of the platform")
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {REQUESTS} requests, {PROMPT} in {OUTPUT} out")
    for model in args.models.split(","):
        for quantize in args.quantize.split(","):
            for enabled in (False, True):
                options: dict[str, Any] = {"quantize": quantize, **values_of(args.opt)}
                flags = {"enable_sleep_mode": enabled}
                bench = Bench(model, rows=REQUESTS, options=options, flags=flags)
                run(bench, model, 1000)
                wanted, speed = run(bench, model, 2000)
                print(
                    f"{model} quantize={quantize} enable_sleep_mode={enabled}: start {sum(bench.seconds.values()):.1f}"
                    f" s, {speed:.0f} tok/s, {bench.describe()['kv_tokens']} tokens of KV, card {used():.2f} GiB",
                    flush=True,
                )
                for place, pools in enumerate(((Pool.KV_CACHE,), (Pool.WEIGHTS,), tuple(Pool)) if enabled else ()):
                    found, speed = run(bench, model, 3000 + 1000 * place, pools)
                    print(f"  tokens: {equal(wanted, found)}; {speed:.0f} tok/s but for the sleep", flush=True)
                bench.close()
    print(f"at the end the card holds {used():.2f} GiB", flush=True)


if __name__ == "__main__":
    main()
