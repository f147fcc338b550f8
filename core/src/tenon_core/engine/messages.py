"""The messages between an engine and its clients: typed msgpack, the same in one process and across ZMQ.

One `StepUpdate` a step carries all requests' tokens as packed arrays; nothing in it grows a Python object a token.
A *key* names one sequence: request id << 16 | sample index (`n` of a request gives samples 0..n-1).
"""

from __future__ import annotations

import enum

import msgspec
import numpy as np
import numpy.typing as npt

from tenon_core.sampling.params import SamplingParams
from tenon_core.sampling.pooling import Pooling
from tenon_core.sampling.validate import ModelFacts
from tenon_platforms.pools import Pool

SAMPLE_BITS = 16


class FinishReason(enum.IntEnum):
    """Why a sequence ended. `STOP`: an end or stop token, or a stop string; `LENGTH`: token limit reached."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3

    @property
    def text(self) -> str:
        """The name clients see in `finish_reason`."""
        return self.name.lower()


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """The one request type. `id` is made by the server; `prompt` is little-endian int32 token ids.

    `params.seed` and `params.max_tokens` are filled in by the client (never None here). `cache_salt` separates
    tenants in the prefix cache. A lower `priority` runs earlier.
    """

    id: int
    prompt: bytes
    params: SamplingParams
    cache_salt: str = ""
    priority: int = 0
    adapter: str = ""
    pooling: Pooling | None = None  # vectors are wanted, not tokens; `params` are then `NO_TOKENS`

    @property
    def prompt_token_ids(self) -> npt.NDArray[np.int32]:
        """The prompt as int32, zero-copy."""
        return np.frombuffer(self.prompt, dtype="<i4")


NO_TOKENS = SamplingParams(temperature=0.0, max_tokens=1, seed=0, ignore_eos=True)


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """End these requests, or single samples by key, now; unknown ones are ignored. Blocks are free at the next step."""

    ids: tuple[int, ...] = ()
    keys: tuple[int, ...] = ()


class ResetPrefixCache(msgspec.Struct, frozen=True, kw_only=True, tag="reset_prefix_cache"):
    """Forget every cached prefix that no running request holds."""


class GoToSleep(msgspec.Struct, frozen=True, kw_only=True, tag="sleep"):
    """Give these pools of the device back; answered with `SleepState`. ticket: the client's, to know the answer by."""

    ticket: int
    pools: tuple[Pool, ...]


class WakeUp(msgspec.Struct, frozen=True, kw_only=True, tag="wake_up"):
    """Bring these pools back; answered with `SleepState`."""

    ticket: int
    pools: tuple[Pool, ...]


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag="shutdown"):
    """Stop the engine. With `drain`, running requests finish first."""

    drain: bool = False


ClientMessage = GenerateRequest | AbortRequest | ResetPrefixCache | GoToSleep | WakeUp | Shutdown


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one position: the chosen token's, its rank (1 = best), and the best k, best first."""

    token_id: int
    logprob: float
    rank: int
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """The end of one sequence. `stop_token` is the id that ended it, or -1.

    `message` explains an error, and `kind` is its class: "RequestError", "CapacityError", or "" for a failed step.
    `param` is the request's field that it is about, "" where there is none.
    """

    key: int
    reason: int
    stop_token: int = -1
    message: str = ""
    kind: str = ""
    param: str = ""


class PromptInfo(msgspec.Struct, frozen=True, array_like=True):
    """Sent once when a request's prompt was computed: cached tokens, and prompt log-probabilities if asked for.

    `queued_seconds`: from its arrival in the engine to its first row.
    """

    key: int
    num_cached_tokens: int
    logprobs: tuple[TokenLogprobs | None, ...] | None = None
    queued_seconds: float = 0.0


class Pooled(msgspec.Struct, frozen=True, array_like=True):
    """The vectors of one pooling request: `num_rows` of them, float32, one after the other. It has ended with them."""

    key: int
    num_rows: int
    data: bytes


class EngineStats(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot for metrics and the operator's view; sent with a step now and then.

    `num_steps_by_size`: steps by their tokens, in the buckets of `observability.metric_names.TOKENS_OF_A_STEP` and one
    beyond; `num_scheduled_tokens` is their sum.
    """

    num_running: int
    num_waiting: int
    num_blocks: int
    num_free_blocks: int
    num_steps: int
    num_preemptions: int
    num_prompt_tokens: int
    num_generated_tokens: int
    num_prefix_queries: int
    num_prefix_hits: int
    num_compiles_after_ready: int
    num_scheduled_tokens: int = 0
    num_steps_by_size: tuple[int, ...] = ()


class StepUpdate(msgspec.Struct, frozen=True, tag="step"):
    """What one step produced. `keys` is int64 and `tokens` int32, one entry a new token, in order of generation.

    A finished sequence's last token (also the stop token that ended it) is among the tokens of this or an earlier
    update; `finished` comes with or after them.
    """

    step: int
    keys: bytes
    tokens: bytes
    logprobs: tuple[tuple[int, TokenLogprobs], ...] = ()  # (index into tokens, its log-probabilities)
    finished: tuple[Finished, ...] = ()
    prompts: tuple[PromptInfo, ...] = ()
    stats: EngineStats | None = None
    pooled: tuple[Pooled, ...] = ()


class KernelUse(msgspec.Struct, frozen=True, array_like=True):
    """A kernel that was chosen, for the operator's view. `source`: who offered it; `num_uses`: layers that asked."""

    op: str
    kernel: str
    source: str
    num_uses: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The engine answered a real request and takes more."""

    facts: ModelFacts
    start_seconds: dict[str, float] = {}  # phase -> seconds
    kernels: tuple[KernelUse, ...] = ()
    asleep: tuple[Pool, ...] = ()


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """The loop is alive: sent when it had nothing else to say for a while."""

    stats: EngineStats | None = None


class Busy(msgspec.Struct, frozen=True, tag="busy"):
    """The loop is about to compute: nothing may be heard of it for about `seconds`, by what the start measured."""

    seconds: float


class SleepState(msgspec.Struct, frozen=True, tag="sleep_state"):
    """What sleeps now, told to all clients after one asked for a change. num_bytes: given back by it.

    `message` explains why nothing changed, and `kind` is its class, "" where it did.
    """

    ticket: int
    asleep: tuple[Pool, ...]
    num_bytes: int = 0
    kind: str = ""
    message: str = ""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine could not start, or died. `kind` is the error's class name; the message carries the remedy."""

    kind: str
    message: str


EngineMessage = StepUpdate | Ready | Heartbeat | Busy | SleepState | Failed


def sequence_key(request_id: int, sample_index: int) -> int:
    """The key of one sequence."""
    return request_id << SAMPLE_BITS | sample_index


def split_key(key: int) -> tuple[int, int]:
    """(request id, sample index) of a key."""
    return key >> SAMPLE_BITS, key & ((1 << SAMPLE_BITS) - 1)
