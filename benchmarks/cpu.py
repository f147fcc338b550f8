"""Tenon's CPU platform and its peers on one checkpoint, interleaved, one at a time; medians and ratios.

    python benchmarks/cpu.py MODEL.gguf [--json] [--threads 2] [--decode 127] [--hf float32,bfloat16] [--llamacpp]
    python benchmarks/cpu.py MODEL.gguf --kernels torch,native --hf "" --cases many
    python benchmarks/cpu.py MODEL --vllm PYTHON --openvino PYTHON --openvino-model DIR [--peer-model FOLDER]

MODEL is a GGUF file or a folder of safetensors. vLLM takes such a folder (`--peer-model`; MODEL itself where it is one)
and OpenVINO an exported one, each in an environment of its own: `cpu_vllm.py` and `cpu_openvino.py` say how.

Cases: prefill of 512 tokens; decode of one stream after 128 tokens; 16 (or `--concurrent`) requests of 128 tokens in
and 128 out at once, prompt time included. Tenon computes and caches in float32 unless `--dtype` and `--kv` say else:
bfloat16 is what it chooses itself on a machine with products of it; llama.cpp's cache is float16. Peak memory is the
process's: it says something where one engine runs. With `--decode N` below 127 only N tokens are decoded and the rest
is extrapolated, for every engine alike. Absolute figures of a shared machine mean little: read the ratios. On a machine
that others keep busy, `--threads 1 --clock cpu` counts the CPU time that each engine takes: with one thread nobody
waits for anybody.
"""

from __future__ import annotations

import argparse
import json
import math
import platform as host
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cpu_openvino import openvino_peer
from cpu_vllm import vllm_peer
from peer_process import ProcessPeer

from tenon_core.config import EngineConfig
from tenon_core.engine.assembly import Sockets
from tenon_core.engine.messages import GenerateRequest
from tenon_core.engine.start import load, open_model
from tenon_core.sampling.params import SamplingParams
from tenon_cpu.platform import CPUPlatform
from tenon_platforms.dtypes import DType

PROMPT, OUTPUT, CONCURRENT, PREFILL = 128, 128, "16", 512
Prompts = list[list[int]]


class Tenon:
    """The engine in this process. `gguf`, `weights` and `kernels` are the platform's options."""

    def __init__(
        self,
        path: Path,
        *,
        threads: int,
        gguf: str,
        weights: str,
        kernels: str,
        dtype: DType,
        kv: DType,
        concurrent: int,
    ) -> None:
        self.name = f"tenon gguf={gguf} weights={weights} kernels={kernels} dtype={dtype.value} kv={kv.value}"
        blocks = concurrent * 16 + 2  # of 64 tokens; the null block, and one for the last token's successor
        config = EngineConfig.from_flat(model=str(path), max_num_seqs=concurrent, max_model_len=1024, num_blocks=blocks)
        options = {"threads": threads, "gguf": gguf, "weights": weights, "kernels": kernels}
        sockets = Sockets.open(CPUPlatform(options))
        self.opened = open_model(config)
        self.assembled = load(config, sockets, self.opened, dtype=dtype, kv_dtype=kv)
        self._next = 0

    def generate(self, prompts: Prompts, count: int) -> Prompts:
        """Greedy tokens of every prompt."""
        engine, rows = self.assembled.engine, {}
        params = SamplingParams(temperature=0.0, seed=0, max_tokens=count, ignore_eos=True)
        with torch.inference_mode():
            for prompt in prompts:
                self._next += 1
                rows[self._next << 16] = []
                engine.submit(
                    GenerateRequest(id=self._next, prompt=np.array(prompt, dtype="<i4").tobytes(), params=params)
                )
            while engine.has_work():
                update = engine.step()
                if update is not None:
                    for key, token in zip(
                        np.frombuffer(update.keys, np.int64).tolist(),
                        np.frombuffer(update.tokens, np.int32).tolist(),
                        strict=True,
                    ):
                        rows[key].append(token)
        return list(rows.values())


class Transformers:
    """Hugging Face's generate on the same weights, expanded."""

    def __init__(self, path: Path, *, dtype: str) -> None:
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.name = f"transformers {dtype}"
        where = (str(path), {}) if path.is_dir() else (str(path.parent), {"gguf_file": path.name})
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            where[0], dtype=getattr(torch, dtype), **where[1]
        ).eval()

    def generate(self, prompts: Prompts, count: int) -> Prompts:
        """Greedy tokens of every prompt; all prompts are equally long."""
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            found = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
            )
        return [row.tolist() for row in found[:, ids.shape[1] :]]


def prompts_of(rng: np.random.Generator, count: int, length: int) -> Prompts:
    """Random prompts that no earlier run had, so that no prefix cache helps."""
    return [rng.integers(5, 30_000, length).tolist() for _ in range(count)]


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


class Stopwatch:
    """Seconds of one call, by the clock that was asked for: the wall's, or CPU time of all threads."""

    clock: Callable[[], float] = staticmethod(time.perf_counter)


def seconds(work: Callable[[], Any]) -> float:
    """Seconds of one call."""
    start = Stopwatch.clock()
    work()
    return Stopwatch.clock() - start


def measure(
    engine: Any, rng: np.random.Generator, decode: int, cases: frozenset[str], concurrent: Sequence[int]
) -> dict[str, float]:
    """One run of the cases: tokens a second; nan where the machine was too disturbed to tell."""
    run, found = engine.generate, {}
    if "prefill" in cases:
        long = prompts_of(rng, 1, PREFILL)
        found["prefill_512_tok_s"] = PREFILL / seconds(lambda: run(long, 1))
    if "one" in cases:
        one, rest = prompts_of(rng, 1, PROMPT), prompts_of(rng, 1, PROMPT)
        single = per_token(seconds(lambda: run(one, 1)), seconds(lambda: run(rest, 1 + decode)), decode)
        found["decode_1_tok_s"] = 1 / single
    for requests in concurrent if "many" in cases else ():
        found |= at_once(run, rng, decode, requests)
    return found


def at_once(run: Callable[..., Prompts], rng: np.random.Generator, decode: int, requests: int) -> dict[str, float]:
    """The case `many`: that many requests, each of 128 tokens in and 128 out."""
    many, more = prompts_of(rng, requests, PROMPT), prompts_of(rng, requests, PROMPT)
    start, whole = seconds(lambda: run(many, 1)), seconds(lambda: run(more, 1 + decode))
    step = per_token(start, whole, decode)
    if decode != OUTPUT - 1:
        whole = start + step * (OUTPUT - 1)
    return {f"concurrent_{requests}_out_tok_s": requests * OUTPUT / whole, f"concurrent_{requests}_step_ms": step * 1e3}


def per_token(first: float, whole: float, decode: int) -> float:
    """Seconds of a decode step; nan where the longer run was the quicker one, which says only that neither counts."""
    return (whole - first) / decode if whole > first else float("nan")


def median(values: list[float]) -> float:
    """Of the runs that count, nan where none does."""
    kept = [value for value in values if not math.isnan(value)]
    return statistics.median(kept) if kept else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a .gguf file, or a folder of safetensors")
    parser.add_argument("--threads", type=int, default=0, help="0: physical cores")
    parser.add_argument("--decode", type=int, default=OUTPUT - 1, help="tokens really decoded a run")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--hf", default="float32,bfloat16", help="Transformers' dtypes, comma-separated; empty: none")
    parser.add_argument("--tenon", default="auto:auto", help="gguf:weights options, comma-separated pairs")
    parser.add_argument("--kernels", default="auto", help="cpu.kernels of every pair, comma-separated")
    parser.add_argument("--dtype", default="float32", help="type that Tenon computes in")
    parser.add_argument("--kv", default="", help="type of Tenon's KV cache; empty: as it computes")
    parser.add_argument("--concurrent", default=CONCURRENT, help="requests at once in the case `many`, comma-separated")
    parser.add_argument("--llamacpp", action="store_true", help="llama.cpp too (cpu_llamacpp.py says how)")
    parser.add_argument("--vllm", help="the Python of an environment with vLLM")
    parser.add_argument("--vllm-dtype", default="bfloat16", help="type that vLLM computes in")
    parser.add_argument("--vllm-eager", action="store_true", help="vLLM without compiling the model")
    parser.add_argument("--openvino", help="the Python of an environment with OpenVINO GenAI")
    parser.add_argument("--openvino-model", type=Path, help="the exported model for OpenVINO")
    parser.add_argument("--peer-model", type=Path, help="a folder of safetensors for vLLM; without: MODEL")
    parser.add_argument("--cases", default="prefill,one,many", help="which cases, comma-separated")
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    check(parser, args)
    Stopwatch.clock = staticmethod(CLOCKS[args.clock])
    cases = frozenset(args.cases.split(","))
    concurrent = [int(requests) for requests in args.concurrent.split(",")]
    pairs = [pair.split(":") for pair in args.tenon.split(",")]
    engines: list[Any] = [
        Tenon(
            args.model,
            threads=args.threads,
            gguf=gguf,
            weights=kept,
            kernels=kernels,
            dtype=DType(args.dtype),
            kv=DType(args.kv or args.dtype),
            concurrent=max(concurrent),
        )
        for kernels in args.kernels.split(",")
        for gguf, kept in pairs
    ]
    engines += [Transformers(args.model, dtype=dtype) for dtype in args.hf.split(",") if dtype]
    engines += peers(args, max(concurrent))
    runs: dict[str, list[dict[str, float]]] = {engine.name: [] for engine in engines}
    rng = np.random.default_rng(0)
    try:
        for engine in engines:  # warm up
            engine.generate(prompts_of(rng, 2, 16), 4)
        for _ in range(args.repeat):
            for engine in engines:
                runs[engine.name].append(measure(engine, rng, args.decode, cases, concurrent))
    finally:
        for engine in engines:
            if isinstance(engine, ProcessPeer):
                engine.close()
    report(args, runs)


def check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse what cannot be measured, before anything is loaded."""
    if args.vllm and not (args.peer_model or args.model).is_dir():
        parser.error(f"vLLM needs a folder of safetensors, and {args.model} is a file: name one with --peer-model")
    if args.openvino and not args.openvino_model:
        parser.error("OpenVINO needs its own form of the model: name the exported folder with --openvino-model")
    if args.clock == "cpu" and (args.vllm or args.openvino):
        parser.error("--clock cpu counts this process's time alone: leave out --vllm and --openvino, or take wall")
    if args.llamacpp and args.model.is_dir():
        parser.error(f"llama.cpp needs a .gguf file, and {args.model} is a folder: leave out --llamacpp")


def peers(args: argparse.Namespace, sequences: int) -> list[Any]:
    """The peers besides Transformers that were asked for."""
    threads, length = args.threads or CPUPlatform().cpu.physical_cores, PREFILL + 64
    found: list[Any] = []
    if args.llamacpp:
        from cpu_llamacpp import LlamaCpp

        found.append(LlamaCpp(args.model, threads=threads, sequences=sequences, length=length))
    if args.vllm:
        found.append(
            vllm_peer(
                args.vllm,
                args.peer_model or args.model,
                threads=threads,
                sequences=sequences,
                length=length,
                dtype=args.vllm_dtype,
                eager=args.vllm_eager,
            )
        )
    if args.openvino:
        found.append(openvino_peer(args.openvino, args.openvino_model, threads=threads, sequences=sequences))
    return found


def report(args: argparse.Namespace, runs: dict[str, list[dict[str, float]]]) -> None:
    """Print medians, and every Tenon's ratio to the best peer of each case."""
    medians = {name: {case: median([run[case] for run in each]) for case in each[0]} for name, each in runs.items()}
    tenons = [name for name in medians if name.startswith("tenon")]
    peers = [name for name in medians if name not in tenons]
    discarded = {
        name: count
        for name, each in runs.items()
        if (count := sum(math.isnan(v) for run in each for v in run.values()))
    }
    ratios = {  # nan beside any nan: a peer that could not be measured is not one that was beaten
        tenon: {
            case: medians[tenon][case] / float(np.max([medians[peer][case] for peer in peers]))
            for case in medians[tenon]
            if peers and case.endswith("tok_s")
        }
        for tenon in tenons
    }
    setting = {
        "model": args.model.name,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cpu": CPUPlatform().cpu.arch,
        "machine": host.machine(),
        "decoded": args.decode,
        "repeat": args.repeat,
        "clock": args.clock,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    if args.json:
        print(json.dumps({"setting": setting, "medians": medians, "ratios": ratios, "discarded": discarded}))
        return
    print("  ".join(f"{key}={value}" for key, value in setting.items()))
    width = max(map(len, medians))
    for name, cases in medians.items():
        print(f"{name:{width}}  " + "  ".join(f"{case}={value:.1f}" for case, value in cases.items()))
    if discarded:
        print(f"discarded values (machine disturbed): {discarded}")
    for tenon, each in ratios.items():
        print(f"{tenon} / best peer: " + "  ".join(f"{case}={value:.2f}" for case, value in each.items()))


if __name__ == "__main__":
    main()
