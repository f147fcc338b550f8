"""Tenon on one GPU, offline, random weights: tokens a second of `cuda_cases.py`, and where a step's time goes.

    python benchmarks/cuda.py [--cases 8b-1,0.6b-256] [--quick] [--profile] [--limit 60] [--json FILE]
                              [--opt graphs=false] [--repeat 2] [--late]

Every case prints one line and one JSON object: output tokens a second (prompt tokens too where the case says total),
share of the limit, target; host phases of a decode step; its time on the device and the gap between two of them, from
events of a shorter second run. Weights are made on the device, normal with deviation 0.02; prompts are random.
`--quick`: a quarter of the tokens. `--profile`: also the kernels of a decode step, by device time, which for kernels
that begin early includes their waiting; `--late`: none does.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROCESS_START = time.perf_counter()

from checkout import use_checkout  # noqa: E402 - the clock starts before everything else

use_checkout()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from cuda_cases import CASES, MAX_MODEL_LEN, MODELS, Case  # noqa: E402
from cuda_steps import evented, watched  # noqa: E402

from tenon_core.config import EngineConfig  # noqa: E402
from tenon_core.engine.assembly import Sockets  # noqa: E402
from tenon_core.engine.messages import GenerateRequest  # noqa: E402
from tenon_core.engine.start import adjust, answer_one, effective_dtypes, load, open_model, warm_up  # noqa: E402
from tenon_core.sampling.params import SamplingParams  # noqa: E402
from tenon_cuda.platform import CUDAPlatform  # noqa: E402
from tenon_platforms.ops.linear import MergedLinearSpec  # noqa: E402

IMPORT_SECONDS = time.perf_counter() - PROCESS_START


class Bench:
    """One engine, started as a server's is. seconds: of its start, by phase."""

    def __init__(self, model: str, *, rows: int, options: dict[str, Any], flags: dict[str, Any]) -> None:
        self.seconds: dict[str, float] = {}
        self._mark = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(MODELS[model]))
            config = EngineConfig.from_flat(
                **{
                    "model": folder,
                    "load_format": "dummy",
                    "max_num_seqs": rows,
                    "max_model_len": MAX_MODEL_LEN,
                    **flags,
                }
            )
            self.sockets = Sockets.open(CUDAPlatform(options))
            self._phase("open device")
            opened = open_model(config)
        ledger, config = adjust(config, self.sockets, opened)
        dtype, kv_dtype = effective_dtypes(config, self.sockets.capabilities, opened, ledger)
        self.assembled = load(config, self.sockets, opened, dtype=dtype, kv_dtype=kv_dtype)
        self.sockets.device.synchronize()
        self._phase("weights")
        warm_up(self.assembled, self.sockets.device)
        self._phase("warm up")
        answer_one(self.assembled.engine)
        self.assembled.engine.mark_ready()
        self._phase("first request")
        self._rng = np.random.default_rng(0)
        self._next = 0

    def _phase(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name], self._mark = round(now - self._mark, 3), now

    def describe(self) -> dict[str, Any]:
        """What was decided: kernels, memory, captures."""
        table, memory = self.assembled.table, self.assembled.memory
        kernels: dict[str, set[str]] = {}
        for choice in table.choices:
            kernels.setdefault(choice.spec.op, set()).add(f"{choice.kernel.name} ({choice.source})")
        return {
            "kernels": {op: sorted(names) for op, names in kernels.items()},
            "num_linears": sum(isinstance(choice.spec, MergedLinearSpec) for choice in table.choices),
            "reference": table.reference_line(),
            "weights_gib": round(memory.weights / 2**30, 2),
            "kv_tokens": memory.num_blocks * self.assembled.block_size,
            "block_size": self.assembled.block_size,
            "step_tokens": self.assembled.policy.limits.max_tokens,
            "num_captures": getattr(self.assembled.runner.step, "num_captures", 0),
            "peak_gib": round(self.sockets.device.memory().peak / 2**30, 2),
        }

    def run(self, case: Case, *, share: float = 1.0, limit_s: float = 1e9) -> dict[str, float]:
        """One run of a case with `share` of its output tokens; what is not done in time is aborted."""
        engine, rng = self.assembled.engine, self._rng
        vocab = MODELS[case.model]["vocab_size"]
        prompts = [rng.integers(0, vocab, self._pick(case.prompt)).astype("<i4") for _ in range(case.requests)]
        ids, submitted = [], 0
        with watched(engine) as steps, engine.loop():
            start = time.perf_counter()
            for prompt in prompts:
                self._next += 1
                count = max(2, round(self._pick(case.output) * share))
                params = SamplingParams(
                    temperature=case.temperature, seed=self._next, max_tokens=count, ignore_eos=True
                )
                engine.submit(GenerateRequest(id=self._next, prompt=prompt.tobytes(), params=params))
                ids.append(self._next)
                submitted += count
            generated, first = 0, 0.0
            while engine.has_work():
                before = time.perf_counter()
                update = engine.step()
                after = time.perf_counter()
                steps.end(after - before)
                if update is not None and update.tokens:
                    generated += len(update.tokens) // 4
                    first = first or after - start
                if after - start > limit_s:
                    engine.abort(ids)
            seconds = time.perf_counter() - start
        prompt_tokens = sum(map(len, prompts))
        return {
            "tok_s": (generated + (prompt_tokens if case.total else 0)) / seconds,
            "seconds": round(seconds, 3),
            "first_token_s": round(first, 3),
            "num_steps": len(steps.whole),
            "complete": float(generated == submitted),
            **{f"decode_{name}_us": value for name, value in steps.decode_medians().items()},
        }

    def _pick(self, bounds: tuple[int, int]) -> int:
        return int(self._rng.integers(bounds[0], bounds[1] + 1))

    def close(self) -> None:
        """Give the card back for the next engine."""
        self.assembled.engine.shutdown()
        del self.assembled, self.sockets
        gc.collect()
        torch.cuda.empty_cache()


def measure(bench: Bench, case: Case, args: argparse.Namespace) -> dict[str, Any]:
    """Warm up, run, then a shorter run with events."""
    share = 0.25 if args.quick else 1.0
    bench.run(case, share=0.03, limit_s=args.limit)  # kernels of this case's prompts, modes captured lazily
    runs = [bench.run(case, share=share, limit_s=args.limit) for _ in range(1 if args.quick else args.repeat)]
    best = max(runs, key=lambda run: run["tok_s"])
    with evented(bench.assembled.runner) as step:
        bench.run(case, share=min(share, 0.25), limit_s=args.limit)
        device = step.figures()
    stats = bench.assembled.engine.stats()
    found = {
        "case": case.name,
        "requests": case.requests,
        "metric": "total" if case.total else "output",
        **{name: round(value, 1) if name == "tok_s" else value for name, value in best.items()},
        "runs": [round(run["tok_s"], 1) for run in runs],
        "limit": case.limit,
        "share_of_limit": round(best["tok_s"] / case.limit, 3),
        "target": case.target,
        "peer": case.peer,
        **device,
        "num_preemptions": stats.num_preemptions,
        "num_compiles_after_ready": stats.num_compiles_after_ready,  # of the engine so far
        "quick": args.quick,
    }
    if args.profile:
        found["top_kernels"] = top_kernels(bench, case, args.limit)
    return found


def top_kernels(bench: Bench, case: Case, limit_s: float) -> list[dict[str, Any]]:
    """Device time by kernel over a short run, the largest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        bench.run(case, share=0.06, limit_s=limit_s)
        torch.cuda.synchronize()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)[:20]
    return [
        {"kernel": event.key[:100], "calls": event.count, "us": round(event.self_device_time_total, 1)}
        for event in events
    ]


def report(found: dict[str, Any]) -> None:
    """One line for people."""
    print(
        f"{found['case']:12} {found['tok_s']:>10,.0f} tok/s  {found['share_of_limit']:>6.1%} of the limit"
        f"  target {found['target']:>8,.0f}  peer {found['peer']:>8,.0f}"
        f"  | decode step {found.get('decode_step_us', 0):>8,.0f} us: host {found.get('decode_host_us', 0):>6,.0f}"
        f" device {found.get('device_us', 0):>8,.0f} gap {found.get('gap_us', 0):>6,.0f}"
        f" idle {found.get('idle_share', 0):>6.1%}",
        flush=True,
    )
    for kernel in found.get("top_kernels", ()):
        print(f"    {kernel['us']:>12,.0f} us {kernel['calls']:>7} x {kernel['kernel']}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", help="names, comma-separated, or beginnings of them; empty: all")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--limit", type=float, default=90.0, help="seconds of one run of a case")
    parser.add_argument("--json", type=Path, default=None, help="append the JSON lines here, not to stdout")
    parser.add_argument("--late", action="store_true", help="kernels begin when the one before is complete")
    parser.add_argument("--opt", action="append", default=[], help="KEY=VALUE, an option of the platform")
    parser.add_argument("--flag", action="append", default=[], help="NAME=VALUE, a field of the engine's configuration")
    return parser.parse_args()


def values_of(pairs: list[str]) -> dict[str, Any]:
    """KEY=VALUE pairs; numbers and true, false, null as JSON reads them."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, _, text = pair.partition("=")
        try:
            found[key] = json.loads(text)
        except json.JSONDecodeError:
            found[key] = text
    return found


def main() -> int:
    args = parse()
    if args.late:
        from tenon_triton import early

        early.options = lambda: early.OFF
    wanted = [name for name in args.cases.split(",") if name]
    cases = [case for case in CASES if not wanted or any(case.name.startswith(name) for name in wanted)]
    if not cases:
        print(f"no such case: there are {', '.join(case.name for case in CASES)}", file=sys.stderr)
        return 2

    def emit(line: dict[str, Any]) -> None:
        text = json.dumps(line)
        if args.json is None:
            print(text, flush=True)
        else:
            with args.json.open("a") as file:
                file.write(text + "\n")

    for engine in dict.fromkeys(case.engine for case in cases):
        mine = [case for case in cases if case.engine == engine]
        options = {"quantize": engine[1], **values_of(args.opt)}
        rows = max(case.requests for case in mine)
        bench = Bench(engine[0], rows=rows, options=options, flags=values_of(args.flag))
        about = {
            "engine": engine,
            "rows": rows,
            "import_s": round(IMPORT_SECONDS, 2),
            "start_s": bench.seconds,
            **bench.describe(),
            "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name(),
        }
        print(f"{engine[0]} quantize={engine[1]} rows={rows} start {sum(bench.seconds.values()):.1f} s", flush=True)
        emit(about)
        for case in mine:
            found = measure(bench, case, args)
            report(found)
            emit(found)
        bench.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
