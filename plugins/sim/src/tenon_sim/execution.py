"""Execution on the simulated device: traced executables over a strict lattice, or captured decode steps.

A run returns outputs at once; the queue fills them in. Static keys get the checks of `guard.py` at every run; a
capture's inputs must be the same tensors every time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tenon_platforms.capabilities import Capabilities
from tenon_platforms.execution import EngineLimits, Executable, ExecutableKind, Execution
from tenon_platforms.model import ModelSpec
from tenon_platforms.shapes import DynamicShapes, LatticeShapes, SamplingMode, ScheduleLimits, ShapeKey, ShapePolicy

from .device import SimDevice, check_narrow
from .faults import BrokenContractError
from .guard import Program, guarded
from .trees import map_tensors, tensors_of

CHUNK = 24  # tokens of a prefill chunk: odd on purpose, no power of two
MAX_PREFILLS = 2
MAX_LOGPROBS = 20
KEPT_EAGER_KEYS = 256
DEFAULT_MAX_TOKENS = 256  # dynamic character


@dataclass(slots=True, kw_only=True)
class _Prepared:
    """One key's executable. outputs: a template, and for a capture the buffers themselves."""

    program: Program
    inputs: dict[str, Tensor]
    outputs: Any


class SimExecutable(Executable):
    """A function of a step on the simulated device."""

    def __init__(self, device: SimDevice, fn: Callable[[Any], Any], *, name: str, kind: ExecutableKind) -> None:
        self.kind = kind
        self.num_compiles = 0
        self.num_captures = 0
        self.fingerprint = f"sim:{name}:{kind.value}"
        self._device = device
        self._fn = fn
        self._name = name
        self._prepared: dict[ShapeKey, _Prepared] = {}
        self._eager: dict[ShapeKey, Any] = {}  # output templates of keys that are not static

    def prepare(self, key: ShapeKey, inputs: Any) -> None:
        self._prepare(key, inputs)

    def run(self, key: ShapeKey, inputs: Any) -> Any:
        if not key.static:
            return self._run_eagerly(key, inputs)
        prepared = self._prepared.get(key)
        if prepared is None:
            return self._prepare(key, inputs, counted=True)
        self._check_inputs(key, inputs, prepared)
        is_capture = self.kind is ExecutableKind.CAPTURE
        outputs = prepared.outputs if is_capture else map_tensors(prepared.outputs, self._like)

        def work() -> None:
            self._device.lag()
            self._count_run()
            self._deliver(guarded(self._at(key), self._fn, inputs, prepared.program, record=False), outputs)

        self._device.submit(work)
        return outputs

    def release(self) -> None:
        self._prepared.clear()
        self._eager.clear()

    def _prepare(self, key: ShapeKey, inputs: Any, *, counted: bool = False) -> Any:
        """Record the program by running it once, and wait for it. Returns its outputs."""
        for path, tensor in tensors_of(inputs):
            check_narrow(f"{self._at(key)}: input {path}", tensor.dtype)
        program = Program(with_memory=self.kind is ExecutableKind.CAPTURE)
        if self.kind is ExecutableKind.TRACE:
            self.num_compiles += 1
        else:
            self.num_captures += 1

        def work() -> Any:
            time.sleep(self._device.options.compile_ms / 1000)
            if counted:
                self._count_run()
            return guarded(self._at(key), self._fn, inputs, program, record=True)

        outputs = map_tensors(self._wait_for(work), Tensor.clone)
        self._prepared[key] = _Prepared(program=program, inputs=dict(tensors_of(inputs)), outputs=outputs)
        return outputs

    def _run_eagerly(self, key: ShapeKey, inputs: Any) -> Any:
        if self.kind is ExecutableKind.TRACE:
            raise BrokenContractError(f"{self._at(key)} lies outside the lattice, which is all that this device runs")

        def work() -> Any:
            self._device.lag()
            self._count_run()
            return self._fn(inputs)

        template = self._eager.get(key)
        if template is None:
            if len(self._eager) >= KEPT_EAGER_KEYS:
                self._eager.clear()
            template = self._eager[key] = self._wait_for(work)
            return template
        outputs = map_tensors(template, self._like)
        self._device.submit(lambda: self._deliver(work(), outputs))
        return outputs

    def _wait_for(self, work: Callable[[], Any]) -> Any:
        results: list[Any] = []
        self._device.submit(lambda: results.append(work()))
        self._device.synchronize()
        return results[0]

    def _count_run(self) -> None:
        if self._name != "forward":  # a step's first half
            self._device.count_step()

    def _like(self, tensor: Tensor) -> Tensor:
        return self._device.empty(tuple(tensor.shape), tensor.dtype)

    def _deliver(self, result: Any, outputs: Any) -> None:
        for (path, made), (_, target) in zip(tensors_of(result), tensors_of(outputs), strict=True):
            if made.shape != target.shape or made.dtype != target.dtype:
                raise BrokenContractError(
                    f"{self._name}: output {path} is {made.dtype} {list(made.shape)}, prepared was {target.dtype}"
                    f" {list(target.shape)}"
                )
            target.copy_(made)

    def _check_inputs(self, key: ShapeKey, inputs: Any, prepared: _Prepared) -> None:
        """A static key's inputs are what they were, tensor by tensor; for a capture, the very same memory."""
        found = dict(tensors_of(inputs))
        if found.keys() != prepared.inputs.keys():
            different = sorted(found.keys() ^ prepared.inputs.keys())
            raise BrokenContractError(f"{self._at(key)}: inputs differ from the prepared ones in {different}")
        for path, tensor in found.items():
            known = prepared.inputs[path]
            if tensor.shape != known.shape or tensor.dtype != known.dtype:
                raise BrokenContractError(
                    f"{self._at(key)}: input {path} is {tensor.dtype} {list(tensor.shape)}, prepared was {known.dtype}"
                    f" {list(known.shape)}"
                )
            moved = tensor.data_ptr() != known.data_ptr() or tensor.stride() != known.stride()
            if moved and self.kind is ExecutableKind.CAPTURE:
                raise BrokenContractError(f"{self._at(key)}: input {path} is another tensor than the prepared one")

    def _at(self, key: ShapeKey) -> str:
        return f"{self._name} at {key}"


class SimExecution(Execution):
    """The execution socket of the static and the dynamic character."""

    device: SimDevice

    def __init__(self, device: SimDevice, kind: ExecutableKind) -> None:
        super().__init__(device)
        self._kind = kind

    def shape_policy(self, model: ModelSpec, limits: EngineLimits, capabilities: Capabilities) -> ShapePolicy:
        if self._kind is ExecutableKind.TRACE:
            return static_lattice(model, limits)
        whole = 0 if limits.chunking else limits.max_model_len
        max_tokens = limits.max_tokens or max(DEFAULT_MAX_TOKENS, limits.max_rows, whole)
        schedule = ScheduleLimits(max_tokens=max_tokens, max_rows=limits.max_rows, chunking=limits.chunking)
        if limits.enforce_eager:
            return DynamicShapes(limits=schedule)
        return LatticeShapes(limits=schedule, decode_rows=doubling(1, limits.max_rows))

    def executable(self, fn: Callable[[Any], Any], *, name: str) -> Executable:
        return SimExecutable(self.device, fn, name=name, kind=self._kind)

    @property
    def num_compiles(self) -> int:
        return self.device.num_compiles


def static_lattice(model: ModelSpec, limits: EngineLimits) -> LatticeShapes:
    """Decode steps of a power of two of rows; one or two chunks of prompts, never mixed with decodes."""
    longest = CHUNK if limits.chunking else limits.max_model_len  # a prompt that may not be split is one chunk
    chunk = min(longest, limits.max_tokens or longest)
    prefills = max(min(MAX_PREFILLS, (limits.max_tokens or chunk * MAX_PREFILLS) // chunk, limits.max_rows), 1)
    everything = SamplingMode(
        noise=True,
        filters=True,
        penalties=True,
        edits=True,
        grammar=True,
        num_logprobs=min(MAX_LOGPROBS, model.vocab_size),
    )
    return LatticeShapes(
        limits=ScheduleLimits(
            max_tokens=limits.max_tokens or max(chunk * prefills, limits.max_rows),
            max_rows=limits.max_rows,
            mix=False,
            max_prefills=prefills,
            fixed_chunk=chunk,
            chunking=limits.chunking,
        ),
        decode_rows=doubling(1, limits.max_rows),
        prefill=tuple((chunk * count, count) for count in range(1, prefills + 1)),
        blocks=doubling(2, max(limits.max_blocks, 1), factor=8),
        modes=(SamplingMode(), everything),
        strict=True,
    )


def doubling(first: int, last: int, *, factor: int = 2) -> tuple[int, ...]:
    """first, factor times it, ... up to `last`, which is always the end."""
    sizes = [min(first, last)]
    while sizes[-1] < last:
        sizes.append(min(sizes[-1] * factor, last))
    return tuple(sizes)
