"""The execution socket of the CUDA platform: decodes and small steps with prompts are captured, others run eagerly.

    decodes   rows     1 2 4 8 16 24 ... 64 | 80 ... 128 | 160 ... 512 | 576 ... 1024 | 1152 ...   a captured size each
    prompts   tokens   16 32 64 128 256 384 512 768 1024      those of decodes in the same step included
              rows     1 4 16 64 128 256 512 max_rows         1: one prompt and nothing else; at most one a token
    mode      greedy and plain sampling; any other when a batch first needs it, of rare ones a bounded number

At the start what decodes, prompts, filtered sampling and log-probabilities launch is compiled, many kernels at a time;
the powers of two, the largest size and one prompt are recorded, the others when a step first needs them: a recording
takes some hundredths of a second, and all of them would be most of a start. A row of padding reads one block and costs
next to nothing; a token of padding is computed, which a step this small has time for: the host launches it in tens of
milliseconds and the device is done in a few. A step of a captured key is one packed copy and one replay: forward,
sampling and the rows' update lie in one graph.
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
# where linears, experts or an attention take another way; 384: more than own tiles take, and fewer than warp groups
TYPICAL_TOKENS = (1024, 384, 256, 128, 64, 32, 16, 3, 2)
PROMPT_TOKENS = (16, 32, 64, 128, 256, 384, 512, 768)
COARSE_TOKENS = 256  # from one size to the next beyond those
PROMPT_ROWS = (1, 4, 16, 64, 128, 256, 512)
FIRST_PROMPT = 128  # tokens of the one that is recorded at the start
# filtered sampling, and log-probabilities by either pair of kernels
FEW_LOGPROBS = SamplingMode(noise=True, filters=True, num_logprobs=0)
MANY_LOGPROBS = SamplingMode(noise=True, filters=True, num_logprobs=20)
ROW_STEPS = ((64, 8), (128, 16), (512, 32), (1024, 64), (1 << 30, 128))  # (up to, step)


class CaptureLattice(LatticeShapes):
    """A lattice whose powers of two and largest size are captured at the start, of prompts one, the rest lazily."""

    def key(self, need: ShapeKey) -> ShapeKey:
        """Prompts are captured with a logit a row at most, and where neither a grammar nor log-probabilities are asked
        for: in the former the host stands between forward and sampling, and of either there would be many more keys,
        each a graph that is kept.
        """
        mode = need.mode
        if not need.is_decode and (need.logits > need.rows or mode.grammar or mode.num_logprobs >= 0):
            return need
        return LatticeShapes.key(self, need)

    def eager_keys(self) -> Iterator[ShapeKey]:
        return (key for key in LatticeShapes.eager_keys(self) if self._is_first(key))

    def lazy_keys(self) -> Iterator[ShapeKey]:
        return (key for key in LatticeShapes.eager_keys(self) if not self._is_first(key))

    def typical_keys(self) -> Iterator[ShapeKey]:
        """Prompts of the sizes at which some kernel takes another way, eager and captured; filters, logprobs."""
        for tokens in dict.fromkeys((self.limits.max_tokens, *TYPICAL_TOKENS)):
            if tokens <= self.limits.max_tokens:
                yield ShapeKey(tokens=tokens, rows=1, logits=1, max_query=tokens, blocks=0)
        longest = [size for size in reversed(self.prefill) if size[0] == self.prefill[-1][0]]
        for tokens, rows in dict.fromkeys((*longest, *self.prefill[:2])):
            yield ShapeKey(tokens=tokens, rows=rows, logits=rows, max_query=tokens, blocks=0, static=True)
        for rows, mode in {self.decode_rows[-1]: MANY_LOGPROBS, self.decode_rows[0]: FEW_LOGPROBS}.items():
            yield ShapeKey(tokens=rows, rows=rows, logits=rows, max_query=1, blocks=0, mode=mode, static=True)

    def _is_first(self, key: ShapeKey) -> bool:
        if not key.is_decode:
            return (key.tokens, key.rows) == (min(FIRST_PROMPT, self.prefill[-1][0]), 1)
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
        is_pooling = model.head.kind != "language_model"  # its logits are vectors of tokens, as many as are asked for
        tokens = 0 if is_pooling else min(self._settings.graph_tokens, most)
        return CaptureLattice(limits=schedule, decode_rows=decode_rows(rows), prefill=prompt_sizes(tokens, rows))

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


def prompt_sizes(most_tokens: int, most_rows: int) -> tuple[tuple[int, int], ...]:
    """(tokens, rows) of captured steps with prompts, ascending; `most_tokens` is the last; below 2 there are none."""
    if most_tokens < 2:  # one token a row is a decode's key
        return ()
    sizes = [*PROMPT_TOKENS, *range(PROMPT_TOKENS[-1] + COARSE_TOKENS, most_tokens, COARSE_TOKENS)]
    tokens = [*(size for size in sizes if size < most_tokens), most_tokens]
    rows = [*(count for count in PROMPT_ROWS if count < most_rows), most_rows]
    pairs = ((size, min(count, size)) for size in tokens for count in rows)  # every row has a token
    return tuple(dict.fromkeys(pairs))
