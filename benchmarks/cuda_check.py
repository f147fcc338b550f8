"""Correctness on the GPU in a few minutes: tiny float32 models of every family, and the device socket itself.

    python benchmarks/cuda_check.py [--models llama,gemma3] [--opt kernels=torch] [--skip device,behaviour]

Greedy tokens must equal Hugging Face's (margin-aware, `tests/equality.py`), with graphs and without, prepared or
captured while serving, overlapped or not; behaviours (forks, chunks, preemption, sampling) must not change tokens.
The same over a KV cache of float8_e4m3, where they must equal Hugging Face's with keys and values rounded so.
Steps with prompts, alone and among decodes, are captured and replayed: every token must be that of steps padded alike
and run eagerly.
Prints a table and exits 1 where a line fails; tracebacks come last.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkout import use_checkout

use_checkout(tests=True)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from cuda_check_device import DEVICE_CHECKS  # noqa: E402
from cuda_check_prompts import PaddedCUDA  # noqa: E402
from cuda_check_quantized import KINDS, check_quantized  # noqa: E402
from driver import build, drive, model_source, prompts_of, request  # noqa: E402
from equality import assert_greedy_equal, cached_reference, hf_reference  # noqa: E402
from tiny_models import TINY, make_tiny  # noqa: E402

from tenon_core.engine.start import warm_up  # noqa: E402
from tenon_cuda.capabilities import Arch  # noqa: E402
from tenon_cuda.platform import CUDAPlatform  # noqa: E402
from tenon_platforms.dtypes import DType  # noqa: E402

LENGTHS = (1, 2, 7, 16, 33, 100, 171, 300)
NEW_TOKENS = 40
TOKENS_KEPT = 500  # of the KV cache in the check of preemption; all sequences together have 950
BEHAVIOUR_MODELS = ("llama", "gemma3")
# name -> (flags of the engine, whether the lattice is prepared)
VARIANTS: dict[str, tuple[dict[str, Any], bool]] = {
    "graphs": ({}, True),
    "graphs, lazy": ({}, False),
    "graphs, no overlap": ({"overlap": False}, False),
    "eager": ({"enforce_eager": True}, False),
    "eager, no overlap": ({"enforce_eager": True, "overlap": False}, False),
}
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "top_k": 40}
PENALIZED = {**SAMPLED, "repetition_penalty": 1.2, "presence_penalty": 0.3}


@dataclass(slots=True)
class Table:
    """Lines as they come, and the tracebacks of those that failed."""

    failures: list[str] = field(default_factory=list)

    def line(self, subject: str, what: str, check: Callable[[], str]) -> None:
        """Run one check; its text is the last column."""
        start = time.perf_counter()
        try:
            text, mark = check(), "ok  "
        except Exception as error:  # noqa: BLE001 - every check is one line, and the rest still runs
            text, mark = f"{type(error).__name__}: {error}".splitlines()[0][:150], "FAIL"
            self.failures.append(f"--- {subject}, {what}\n{traceback.format_exc()}")
        print(f"{mark} {subject:26} {what:22} {time.perf_counter() - start:6.1f} s  {text}", flush=True)


class Checked:
    """One tiny model: its reference, and engines over it. kv: type of their KV caches, where it is not float32."""

    def __init__(self, name: str, folder: Path, options: dict[str, Any], *, kv: DType | None = None) -> None:
        self.tiny = make_tiny(name, folder)
        self.name = name
        self.options = options
        self.kv = kv
        model = self.tiny.model
        self.reference = hf_reference(model) if kv is None else cached_reference(model, kv)
        self.prompts = prompts_of(LENGTHS)
        self.first: list[list[int]] | None = None  # tokens of the first variant that was right

    def engine(self, *, platform: type[CUDAPlatform] = CUDAPlatform, **flags: Any) -> Any:
        source = model_source(self.tiny.path, self.tiny.config)
        return build(source, platform(self.options), kv_dtype=self.kv, kv_cache_memory=1 << 26, **flags)

    def tokens(self, assembled: Any, *, prepared: bool = False, **params: Any) -> list[list[int]]:
        """Tokens of every prompt; the engine is shut down after."""
        if prepared:
            warm_up(assembled, assembled.engine.device)
        asked = [request(i, prompt, **{"max_tokens": NEW_TOKENS, **params}) for i, prompt in enumerate(self.prompts)]
        try:
            outcome = drive(assembled.engine, asked)
        finally:
            assembled.engine.shutdown()
        return [outcome.of(i, sample) for i in range(len(asked)) for sample in range(params.get("n", 1))]

    def greedy(self, flags: dict[str, Any], *, prepared: bool = False) -> str:
        """Greedy tokens equal Hugging Face's; says how many captures there were."""
        assembled = self.engine(**flags)
        found = self.tokens(assembled, prepared=prepared)
        captures = getattr(assembled.runner.step, "num_captures", 0)
        text = f"{captures} captures" if captures else "no capture"
        if line := assembled.table.reference_line():
            text += f"; {line.partition(':')[0]}"
        if found == self.first:
            return f"the same tokens; {text}"
        ties = sum(
            assert_greedy_equal(tokens, self.reference, prompt, label=f"{self.name}, prompt {i}")
            for i, (tokens, prompt) in enumerate(zip(found, self.prompts, strict=True))
        )
        self.first = self.first or found
        return f"{ties} near ties; {text}"

    def sampled(self, params: dict[str, Any]) -> str:
        """The same samples with graphs and without: rows, padding and kernels are the same, so are the bits."""
        with_graphs = self.tokens(self.engine(), **params)
        without = self.tokens(self.engine(platform=PaddedCUDA), **params)
        different = sum(a != b for a, b in zip(with_graphs, without, strict=True))
        assert not different, f"{different} of {len(without)} samples differ"
        assert len({tuple(tokens) for tokens in with_graphs}) > len(self.prompts) // 2, "the samples are all alike"
        return f"{len(without)} samples"

    def arriving(self, flags: dict[str, Any]) -> str:
        """Requests that come while others decode, three times: recorded, replayed, and with their prompts cached."""
        found, keys = self._arriving(self.engine(**flags))
        expected, _ = self._arriving(self.engine(platform=PaddedCUDA, **flags))
        different = [(a != b).sum() for a, b in zip(found, expected, strict=True)]
        assert not sum(different), f"{different} tokens differ from those of the same steps run eagerly"
        for i, prompt in enumerate(self.prompts):
            assert_greedy_equal(found[0][i].tolist(), self.reference, prompt, label=f"{self.name}, prompt {i}")
        defaults = {"graphs": True, "kernels": "auto", "attention": "auto"}
        others = [key for key, value in self.options.items() if value != defaults.get(key)]
        assert keys or others, "no step with prompts was captured"
        return f"{keys} keys with prompts captured"

    def _arriving(self, assembled: Any) -> tuple[list[Any], int]:
        """Tokens [requests, NEW_TOKENS] of each time, and how many keys with prompts were captured."""
        engine, found = assembled.engine, []
        try:
            for salt in ("one", "other", "other"):
                asked = [request(i, p, max_tokens=NEW_TOKENS, salt=salt) for i, p in enumerate(self.prompts)]

                def arrive(step: int, outcome: Any, asked: list[Any] = asked) -> None:
                    if step % 3 == 2 and step // 3 + 1 < len(asked):
                        engine.submit(asked[step // 3 + 1])

                outcome = drive(engine, asked[:1], on_step=arrive)
                found.append(np.array([outcome.of(i) for i in range(len(asked))]))
            captured = getattr(assembled.runner.step, "_captured", {})
            return found, sum(not key.is_decode for key in captured)
        finally:
            engine.shutdown()

    def forked(self) -> str:
        """Two greedy samples of one request share its blocks, copy the last one, and agree."""
        found = self.tokens(self.engine(max_num_seqs=16), n=2)
        assert all(a == b for a, b in zip(found[::2], found[1::2], strict=True)), "samples of one request differ"
        for tokens, prompt in zip(found[::2], self.prompts, strict=True):
            assert_greedy_equal(tokens, self.reference, prompt)
        return f"{len(found)} samples"

    def preempted(self) -> str:
        """With KV blocks for half of the sequences some are preempted and computed again."""
        built = self.engine()
        size, groups = built.block_size, len(built.model.groups)
        built.engine.shutdown()
        return self.greedy({"num_blocks": groups * (TOKENS_KEPT // size + 1) + 1})

    def large_blocks(self) -> str:
        """Blocks of the scheduler that are several of the kernel's."""
        built = self.engine()
        built.engine.shutdown()
        return self.greedy({"block_size": 2 * built.block_size})


def check_model(table: Table, name: str, folder: Path, options: dict[str, Any], *, behaviour: bool) -> None:
    """All variants of one model."""
    start = time.perf_counter()
    checked = Checked(name, folder, options)
    print(f"     {name}: made in {time.perf_counter() - start:.1f} s", flush=True)
    for what, (flags, prepared) in VARIANTS.items():
        table.line(name, what, lambda flags=flags, prepared=prepared: checked.greedy(flags, prepared=prepared))
    table.line(name, "prompts, captured", lambda: checked.arriving({}))
    if not behaviour:
        return
    table.line(name, "chunks, captured", lambda: checked.arriving({"max_num_batched_tokens": 48}))
    table.line(name, "chunks of 48", lambda: checked.greedy({"max_num_batched_tokens": 48}))
    table.line(name, "few blocks", checked.preempted)
    table.line(name, "large blocks", checked.large_blocks)
    table.line(name, "forks", checked.forked)
    table.line(name, "sampled", lambda: checked.sampled(SAMPLED))
    table.line(name, "penalties, logprobs", lambda: checked.sampled({**PENALIZED, "logprobs": 3}))


def check_cache(table: Table, folder: Path, options: dict[str, Any]) -> None:
    """One model over a KV cache of one byte a value."""
    checked, what = Checked("llama", folder, options, kv=DType.FLOAT8_E4M3), "llama, fp8 cache"
    for name in ("graphs", "eager"):
        flags, prepared = VARIANTS[name]
        table.line(what, name, lambda flags=flags, prepared=prepared: checked.greedy(flags, prepared=prepared))
    table.line(what, "prompts, captured", lambda: checked.arriving({}))
    table.line(what, "chunks of 48", lambda: checked.greedy({"max_num_batched_tokens": 48}))
    table.line(what, "few blocks", checked.preempted)
    table.line(what, "forks", checked.forked)
    table.line(what, "sampled", lambda: checked.sampled(SAMPLED))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(TINY), help="comma-separated")
    parser.add_argument("--opt", action="append", default=[], help="KEY=VALUE, an option of the platform")
    parser.add_argument("--skip", default="", help="device, quantized, cache, models, behaviour: comma-separated")
    args = parser.parse_args()
    skipped = set(args.skip.split(","))
    options: dict[str, Any] = {}
    for pair in args.opt:
        key, _, text = pair.partition("=")
        try:
            options[key] = json.loads(text)
        except json.JSONDecodeError:
            options[key] = text
    start, table = time.perf_counter(), Table()
    device = CUDAPlatform().device()
    device.open()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {device.info}", flush=True)
    if "device" not in skipped:
        for what, check in DEVICE_CHECKS.items():
            table.line("device", what, lambda check=check: check(device))
    has_fp8 = Arch.of(device).has_fp8
    device.close()
    if "quantized" not in skipped:
        with tempfile.TemporaryDirectory() as folder:
            for kind in KINDS:
                table.line(kind, "checkpoint", lambda kind=kind: check_quantized(kind, Path(folder), options))
    if "cache" not in skipped and has_fp8:
        with tempfile.TemporaryDirectory() as folder:
            check_cache(table, Path(folder), options)
    if "models" not in skipped:
        with tempfile.TemporaryDirectory() as folder:
            for name in args.models.split(","):
                behaviour = "behaviour" not in skipped and name in BEHAVIOUR_MODELS
                check_model(table, name, Path(folder), options, behaviour=behaviour)
    print(f"{len(table.failures)} failures, {time.perf_counter() - start:.0f} s")
    for text in table.failures:
        print(text)
    return 1 if table.failures else 0


if __name__ == "__main__":
    sys.exit(main())
