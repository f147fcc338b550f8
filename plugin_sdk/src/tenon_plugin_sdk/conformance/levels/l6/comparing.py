"""Prompts through an engine, their tokens against a reference; what every check of this level ends with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tenon_platforms.dtypes import DType
from tenon_platforms.execution import ExecutableKind

from ...engines import Engine, running
from ...registry import ConformanceError, NotApplicableError
from ...subject import Subject
from ...truth.equality import Reference, assert_greedy_equal

LENGTHS = (1, 2, 7, 16, 33, 100, 171)
NEW_TOKENS = 24


def needs_float32(subject: Subject) -> None:
    """Tokens are compared in float32."""
    if DType.FLOAT32 not in subject.capabilities.dtypes or DType.FLOAT32 not in subject.capabilities.kv_dtypes:
        raise NotApplicableError("tokens are compared in float32, which it does not claim")


def generate(
    subject: Subject, model: Path, prompts: Sequence[Sequence[int]], *, new: int = NEW_TOKENS, **flat: Any
) -> list[list[int]]:
    """Greedy tokens of prompts that run together on a fresh engine, which must not compile late."""
    with running(subject, model, **flat) as engine:
        found = engine.generate(prompts, max_tokens=new)
        check_compiles(subject, engine)
        return found


def check_compiles(subject: Subject, engine: Engine) -> None:
    """Raise where a device that compiles its steps did so after it was ready."""
    late = engine.stats.num_compiles_after_ready
    if late and subject.capabilities.executable is ExecutableKind.TRACE:
        raise ConformanceError(f"{late} compilations after the engine was ready: its lattice leaves steps out")


def same_tokens(
    found: Sequence[Sequence[int]], reference: Reference, prompts: Sequence[Sequence[int]], label: str
) -> None:
    """Raise `ConformanceError` where tokens are not the reference's."""
    for place, (tokens, prompt) in enumerate(zip(found, prompts, strict=True)):
        try:
            assert_greedy_equal(tokens, reference, prompt, label=f"{label}, prompt {place}")
        except AssertionError as error:
            raise ConformanceError(str(error)) from error
