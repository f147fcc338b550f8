"""The execution socket of the CUDA platform: decode steps are captured graphs, prefills run eagerly.

    rows   1 2 4 8 16 24 ... 64 | 80 ... 128 | 160 ... 512 | 576 ... 1024 | 1152 ...     a captured size each
    mode   greedy and plain sampling; any other when a batch first needs it

At the start what decodes, prompts and filtered sampling launch is compiled, many kernels at a time; the powers of two
and the largest size are recorded, the others when a step first needs them: a recording takes some hundredths of a
second, and all of them would be most of a start. A row of padding reads one block and costs next to nothing. A step of
a captured key is one packed copy and one replay: forward, sampling and the rows' update lie in one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tenon_platforms.execution import EagerExecutable, EngineLimits, Executable, Execution
from tenon_platforms.shapes import DynamicShapes, LatticeShapes, SamplingMode, ScheduleLimits, ShapeKey, ShapePolicy

from .compiling import compile_ahead, num_compiles
from .graphs import CaptureExecutable, GraphPool, GraphRecorder, Recorder
from .options import CUDAOptions

if TYPE_CHECKING:
    from tenon_platforms.capabilities import Capabilities
    from tenon_platforms.device import Device
    from tenon_platforms.model import ModelSpec

STEP_TOKENS, LARGE_STEP_TOKENS = 2048, 8192
LARGE_MEMORY = 64 << 30  # bytes of a card that has the speed for the larger budget
FIRST_ROWS = (1, 2, 4)
PROMPT_TOKENS = (1024, 256, 128, 64, 32)
FILTERED = SamplingMode(noise=True, filters=True)
ROW_STEPS = ((64, 8), (128, 16), (512, 32), (1024, 64), (1 << 30, 128))  # (up to, step)


class CaptureLattice(LatticeShapes):
    """A lattice whose powers of two and largest size are captured at the start, the rest lazily."""

    def eager_keys(self) -> Iterator[ShapeKey]:
        return (key for key in LatticeShapes.eager_keys(self) if self._is_first(key))

    def lazy_keys(self) -> Iterator[ShapeKey]:
        return (key for key in LatticeShapes.eager_keys(self) if not self._is_first(key))

    def typical_keys(self) -> Iterator[ShapeKey]:
        """Prompts of the sizes at which a linear or an attention takes another way, and filtered sampling."""
        for tokens in dict.fromkeys((self.limits.max_tokens, *PROMPT_TOKENS)):
            if tokens <= self.limits.max_tokens:
                yield ShapeKey(tokens=tokens, rows=1, logits=1, max_query=tokens, blocks=0)
        rows = self.decode_rows[0]
        yield ShapeKey(tokens=rows, rows=rows, logits=rows, max_query=1, blocks=0, mode=FILTERED, static=True)

    def _is_first(self, key: ShapeKey) -> bool:
        return key.rows & (key.rows - 1) == 0 or key.rows == self.decode_rows[-1]


class CUDAExecution(Execution):
    """memory: bytes of the card. recorder: makes graphs; another one in tests."""

    def __init__(
        self, device: Device, settings: CUDAOptions, *, memory: int = 0, recorder: Recorder | None = None
    ) -> None:
        super().__init__(device)
        self._settings = settings
        self._memory = memory
        self._recorder = recorder or GraphRecorder(GraphPool())
        self._captures = settings.graphs

    @property
    def num_compiles(self) -> int:
        """Of the process: engines that share one, and its own code, cannot be told apart."""
        return num_compiles(self._settings)

    def shape_policy(self, model: ModelSpec, limits: EngineLimits, capabilities: Capabilities) -> ShapePolicy:
        default = LARGE_STEP_TOKENS if self._memory >= LARGE_MEMORY else STEP_TOKENS
        whole = 0 if limits.chunking else limits.max_model_len
        most = limits.max_tokens or max(self._settings.step_tokens or default, limits.max_rows, whole)
        schedule = ScheduleLimits(max_tokens=most, max_rows=limits.max_rows, chunking=limits.chunking)
        self._captures = self._settings.graphs and not limits.enforce_eager
        if not self._captures:
            return DynamicShapes(limits=schedule)
        rows = min(limits.max_rows, self._settings.graph_rows or limits.max_rows)
        return CaptureLattice(limits=schedule, decode_rows=decode_rows(rows))

    def executable(self, fn: Callable[[Any], Any], *, name: str) -> Executable:
        if not self._captures:
            return EagerExecutable(fn)
        return CaptureExecutable(fn, name=name, recorder=self._recorder, compile_ahead=compile_ahead(self._settings))


def decode_rows(most: int) -> tuple[int, ...]:
    """Row counts of captured decode steps, ascending; `most` is always the last."""
    sizes = [size for size in FIRST_ROWS if size < most]
    size = 0
    for end, step in ROW_STEPS:
        while size < min(end, most - 1):
            size += step
            if size < most:
                sizes.append(size)
        if size >= most - 1:
            break
    return (*sizes, most)
