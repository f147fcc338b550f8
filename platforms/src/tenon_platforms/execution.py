"""The execution socket: which shapes a step may have, and how a function of a step becomes an executable.

One abstraction covers running eagerly, capturing (replay of recorded launches) and tracing (compiling per shape).
Compile is not capture: lazy capture of compiled kernels is fine, a compile after *ready* is counted and reported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .capabilities import Capabilities
from .capabilities import ExecutableKind as ExecutableKind
from .shapes import DynamicShapes, ScheduleLimits, ShapeKey, ShapePolicy

if TYPE_CHECKING:
    from .device import Device
    from .model import ModelSpec

DEFAULT_MAX_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What the operator allows. max_tokens None: the platform decides. max_blocks: most blocks of one row."""

    max_rows: int
    max_model_len: int
    max_tokens: int | None = None
    max_blocks: int = 0
    chunking: bool = True
    enforce_eager: bool = False


class Executable(ABC):
    """A function of a step, ready to run at lattice keys.

    The function is `fn(inputs)`; its inputs carry `key`. For one static key the inputs' tensors are the same objects at
    every call. num_compiles counts compilations so far; fingerprint names what a persistent cache depends on.
    """

    kind: ExecutableKind = ExecutableKind.EAGER
    num_compiles: int = 0
    fingerprint: str = ""

    def compile_ahead(self, steps: Iterable[tuple[ShapeKey, Any]]) -> None:  # noqa: B027  a hint
        """Compile what steps of such keys and inputs launch, much of it at a time, before `prepare` and `run` need it.

        A hint, given once before the first `prepare`: what is left out is compiled there. Nothing is to be seen of it
        but the time. By default `steps`, whose inputs are made as they are asked for, is not even begun.
        """

    @abstractmethod
    def prepare(self, key: ShapeKey, inputs: Any) -> None:
        """Compile or capture for `key` with representative inputs, and run once."""

    @abstractmethod
    def run(self, key: ShapeKey, inputs: Any) -> Any:
        """The function's outputs for these inputs. A key that is not static is run eagerly, whatever the kind."""

    @abstractmethod
    def release(self) -> None:
        """Give back what was captured or compiled."""


class EagerExecutable(Executable):
    """Calls the function."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self._fn = fn

    def prepare(self, key: ShapeKey, inputs: Any) -> None:
        self._fn(inputs)

    def run(self, key: ShapeKey, inputs: Any) -> Any:
        return self._fn(inputs)

    def release(self) -> None:
        """Nothing is held."""


class Execution:
    """Default socket: any shape, eagerly. Subclasses override either half."""

    def __init__(self, device: Device) -> None:
        self.device = device

    @property
    def num_compiles(self) -> int:
        """Compilations outside executables, of kernels called between steps: `row_writes`, `copy_blocks`."""
        return 0

    def shape_policy(self, model: ModelSpec, limits: EngineLimits, capabilities: Capabilities) -> ShapePolicy:
        """The lattice and the schedule limits for this model."""
        most = max(DEFAULT_MAX_TOKENS, limits.max_rows, 0 if limits.chunking else limits.max_model_len)
        return DynamicShapes(
            limits=ScheduleLimits(
                max_tokens=limits.max_tokens or most, max_rows=limits.max_rows, chunking=limits.chunking
            )
        )

    def executable(self, fn: Callable[[Any], Any], *, name: str) -> Executable:
        """An executable of `fn`; `name` is "forward", "sample" or "step" (both fused)."""
        return EagerExecutable(fn)
