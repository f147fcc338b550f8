"""Sampling specs. Reference: `sampling_reference.py`; noise: `noise.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .spec import Spec, feature


@dataclass(frozen=True, kw_only=True)
class SamplerSpec(Spec):
    """Choose a token a row from logits, by the batch's mode."""

    op: ClassVar[str] = "sampler"
    vocab_size: int
    grammar_mask: bool = feature(False, "sampler.grammar_mask")


@dataclass(frozen=True, kw_only=True)
class TokenLogprobsSpec(Spec):
    """Log-probabilities of given tokens, their ranks, and the best few."""

    op: ClassVar[str] = "token_logprobs"
    vocab_size: int
