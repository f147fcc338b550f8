"""Starts an engine for a GPU that is not there, serves, and prints what it compiled: `python late_kernels.py CASE`.

A process of its own, since interpreted kernels and compiled ones exclude each other. Everything is the CUDA platform's
on an H200, at models' real widths, but for what takes time: a compilation is its key alone, a launch nothing, torch's
products are of zeros. Tensors are the CPU's, and mostly pages that nobody writes.

    {"ready": kernels before *ready*, "late": [what was compiled then], "counted": how many the engine says these are,
     "mixed": different numbers of decodes beside prompts in steps that are not captured}
"""

from __future__ import annotations

import json
import math
import mmap
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import triton.compiler
from driver import build, drive, request
from torch.overrides import TorchFunctionMode
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from tenon_core.engine.assembly import Assembled, ModelSource
from tenon_core.engine.messages import GenerateRequest
from tenon_core.engine.start import answer_one, warm_up
from tenon_core.models.registry import family_of
from tenon_core.models.weights import DummySource
from tenon_cuda.capabilities import Arch
from tenon_cuda.execution import CUDAExecution
from tenon_cuda.ops import triton_offers
from tenon_cuda.ops.persistent_mlp import PersistentMLP
from tenon_cuda.ops.warpgroup_gated import WarpgroupGated
from tenon_cuda.ops.warpgroups import WarpgroupPrompts
from tenon_cuda.options import CUDAOptions
from tenon_platforms.capabilities import Capabilities
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.execution import Execution
from tenon_platforms.ops.table import OpTable
from tenon_platforms.platform import Platform
from tenon_triton import compiling
from tenon_triton.facts import DeviceFacts
from tenon_triton.ops import linear

HOPPER = Arch(9, 0)
FACTS = DeviceFacts(compute_units=132, shared_bytes=227 << 10)
MEMORY = 141 << 30
MAX_LEN = 4096
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 131072, "hidden_act": "silu",
    "tie_word_embeddings": False,
}  # fmt: skip
QWEN_06B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
    "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "max_position_embeddings": 40960, "hidden_act": "silu",
    "tie_word_embeddings": True,
}  # fmt: skip
SMALL_STEPS = {**QWEN_06B, "intermediate_size": 2816}  # up to 2,048 tokens few fill a gated product's rounds
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "8b": (LLAMA_8B, {"max_num_seqs": 600}),
    "8b-fp8": (LLAMA_8B, {"max_num_seqs": 600, "quantize": "fp8"}),
    "0.6b": (QWEN_06B, {"max_num_seqs": 256}),
    "small steps": (SMALL_STEPS, {"max_num_seqs": 100, "max_num_batched_tokens": 2048}),
}
LOGPROBS = (0, 1, 5, 16, 20)  # the chosen token's, and so many of the best
SAMPLING = ({}, {"temperature": 0.6}, {"temperature": 0.6, "top_p": 0.9})


class Driver:
    """Of a device that compiles and does not run."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Compiled:
    """A kernel that does nothing."""

    function = packed_metadata = None

    def launch_metadata(self, *arguments: Any) -> None:
        """Nothing."""

    def run(self, *arguments: Any) -> None:
        """Nothing."""


@dataclass(slots=True)
class Compiler:
    """`triton.compiler.compile` without the work. kernels: name and constants of each."""

    kernels: list[str] = field(default_factory=list)

    def __call__(self, src: Any, target: Any = None, options: Any = None, _env_vars: Any = None) -> Compiled:
        names = list(src.signature)
        constants = {names[path[0]]: value for path, value in src.constants.items()}
        self.kernels.append(f"{src.name} {constants} {src.attrs}")
        if knobs.compilation.listener is not None:
            knobs.compilation.listener(cache_hit=False)
        return Compiled()


class Host(Device):
    """What is made through a device may be written: pages of its own, taken when they are."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return self.zeros(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        pages = mmap.mmap(-1, max(math.prod(shape), 1) * dtype.itemsize)
        return torch.frombuffer(pages, dtype=dtype)[: math.prod(shape)].view(shape)

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return self.zeros(shape, dtype)


class Pages(TorchFunctionMode):
    """New tensors are zeros that nobody writes, neither kernels here nor torch: while serving, those of a size share
    their pages.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shared: dict[int, mmap.mmap] = {}
        self.is_serving = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func is torch.empty_like:
            return self._zeros(tuple(args[0].shape), named.get("dtype", args[0].dtype))
        if func not in (torch.empty, torch.zeros):
            return func(*args, **named)
        shape = args[0] if args and not isinstance(args[0], int) else args
        return self._zeros(tuple(shape), named.get("dtype") or torch.float32)

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
        size = math.prod(shape) * dtype.itemsize
        if size < mmap.PAGESIZE:
            return torch.zeros(shape, dtype=dtype)
        room = 1 << (size - 1).bit_length()
        pages = self._shared.get(room) or mmap.mmap(-1, room)
        if self.is_serving:
            self._shared[room] = pages
        return torch.frombuffer(pages, dtype=dtype, count=math.prod(shape)).view(shape)


class NoGraph:
    """Holds nothing; outputs are those of its recording."""

    def replay(self) -> None:
        """Nothing."""

    def reset(self) -> None:
        """Nothing."""


class Recorder:
    """Records by calling."""

    def record(self, fn: Callable[[Any], Any], inputs: Any) -> tuple[NoGraph, Any]:
        return NoGraph(), fn(inputs)

    def forget(self, graph: NoGraph) -> None:
        """Nothing is held."""


class AbsentGPU(Platform):
    """The CUDA platform's kernels and execution on an H200, without it."""

    name = "cuda"
    contract = ">=0.1,<0.2"

    def __init__(self, quantize: str) -> None:
        super().__init__()
        self.settings = CUDAOptions(quantize=quantize)

    def device(self, index: int = 0) -> Device:
        return Host(is_async=True)

    def capabilities(self, device: Device) -> Capabilities:
        return Capabilities(dtypes=(DType.BFLOAT16,), kv_dtypes=(DType.BFLOAT16,))

    def register_ops(self, table: OpTable, device: Device) -> None:
        units, room = FACTS.compute_units, FACTS.shared_bytes
        counter = torch.zeros(16, dtype=torch.int32)
        triton_offers.register(
            table,
            device,
            FACTS,
            self.settings,
            long_prompts=WarpgroupPrompts(HOPPER),
            gated_rows=WarpgroupGated(arch=HOPPER, units=units),
            gated_tokens=PersistentMLP(arch=HOPPER, units=units, shared_bytes=room, counter=counter),
        )

    def execution(self, device: Device) -> Execution:
        return CUDAExecution(device, self.settings, memory=MEMORY, recorder=Recorder())


class NoWeights(DummySource):
    """Zeros."""

    def tensors(self, name: str) -> dict[str, Any]:
        return {"weight": torch.empty(self.shapes[name], dtype=torch.bfloat16)}


def without_work() -> Compiler:
    """Compilations, launches and products cost nothing from now on. Kernels are never compiled before all are asked
    for, as in a cold start.
    """
    compiler = Compiler()
    driver.set_active(Driver())
    triton.compiler.compile = compiler
    settled = compiling._Asked.settled
    compiling._Asked.settled = lambda self, seconds: seconds is None and settled(self, None)  # type: ignore[method-assign]
    linear.linear = lambda x, weight, bias=None: torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype)
    torch._scaled_mm = lambda x, weight, **_: torch.empty((x.shape[0], weight.shape[1]), dtype=torch.bfloat16)
    return compiler


def started(config: dict[str, Any], *, quantize: str = "none", **flags: Any) -> Assembled:
    """An engine that is ready."""
    family = family_of(config)
    spec = family.spec(config, MAX_LEN)
    weights = NoWeights.for_model(spec, family.weights, dtype=DType.BFLOAT16)
    source = ModelSource(name="widths", spec=spec, names=family.weights, weights=weights, eos_token_ids=())
    blocks = flags["max_num_seqs"] * MAX_LEN // 256 + 1024
    made = build(
        source, AbsentGPU(quantize), dtype=DType.BFLOAT16, max_model_len=MAX_LEN, num_blocks=blocks, **flags
    )  # fmt: skip
    warm_up(made, made.engine.device)
    answer_one(made.engine)
    made.engine.mark_ready()
    return made


class Load:
    """Requests that no other is like."""

    def __init__(self, engine: Any, vocab_size: int) -> None:
        self._engine, self._vocab = engine, vocab_size
        self._random = np.random.default_rng(0)
        self._next = 0

    def serve(self, arrivals: Iterable[Sequence[tuple[int, int]]], **sampling: Any) -> None:
        """arrivals: before each step, (prompt, output) tokens of those who come."""
        waiting = iter(arrivals)

        def arrive(step: int, outcome: Any) -> None:
            for prompt, output in next(waiting, ()):
                self._engine.submit(self._request(prompt, output, **sampling))

        arrive(0, None)
        drive(self._engine, on_step=arrive)

    def any_of(self, low: int, high: int) -> int:
        """A number of tokens."""
        return int(self._random.integers(low, high + 1))

    def _request(self, prompt: int, output: int, **sampling: Any) -> GenerateRequest:
        self._next += 1
        ids = self._random.integers(0, self._vocab, prompt).tolist()
        return request(self._next, ids, max_tokens=output, **sampling)


def serve_all(load: Load, rows: int, **sampling: Any) -> None:
    """All numbers of decodes; beside them whole prompts by the dozen, and chunks; eager steps of few prompts."""
    few = -(-rows // 128)
    load.serve(([(load.any_of(2, 40), 260)] * few for _ in range(rows // few)), **sampling)
    load.serve(([(load.any_of(100, 900), load.any_of(2, 60))] * load.any_of(1, 9) for _ in range(60)), **sampling)
    load.serve(([(load.any_of(2000, 3900), load.any_of(2, 40))] * 2 for _ in range(20)), **sampling)
    for prompts in range(1, 20):
        load.serve([[(1200 // prompts + 20, 1)] * prompts], **sampling)
    for tokens in range(1100, 3900, 300):
        load.serve([[(tokens, 3)]], **sampling)
    load.serve([[(100, 3)]], n=2, **sampling)


def count_mixed(assembled: Assembled) -> list[int]:
    """Numbers of decodes beside prompts, of every step from now on that is not captured."""
    found: list[int] = []
    run = assembled.runner.step.run

    def counted(key: Any, call: Any) -> Any:
        if not key.static and 0 < call.inputs.host.num_decodes < call.inputs.host.num_rows:
            found.append(call.inputs.host.num_decodes)
        return run(key, call)

    assembled.runner.step.run = counted  # type: ignore[method-assign]
    return found


def main() -> None:
    """One case."""
    config, flags = CASES[sys.argv[1]]
    torch.set_num_threads(1)
    compiler, pages = without_work(), Pages()
    with pages, torch.inference_mode():
        assembled = started(config, **flags)
        ready, mixed, pages.is_serving = len(compiler.kernels), count_mixed(assembled), True
        load = Load(assembled.engine, config["vocab_size"])
        for sampling in SAMPLING:
            serve_all(load, flags["max_num_seqs"], **sampling)
        for count in LOGPROBS:
            load.serve([[(30, 3)], [(100, 3), (7, 2)]], logprobs=count)
        counted = assembled.engine.stats().num_compiles_after_ready
        assembled.engine.shutdown()
    print(json.dumps({"ready": ready, "late": compiler.kernels[ready:], "mixed": len(set(mixed)), "counted": counted}))


if __name__ == "__main__":
    main()
