"""Prompts of one layer group through libraries where they are asked for or measured faster, else through our kernels.

`cuda.attention=auto` follows `prompt_table`, `triton` asks no library, a library's name sends it all that it takes.
Layout, decodes, writing and copying are the Triton backend's in every case.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tenon_platforms.attention import GraphSupport
from tenon_platforms.errors import ConfigError
from tenon_platforms.kernel import No
from tenon_platforms.ops.attention import AttentionSpec

from ..options import LIBRARIES
from . import flash_attention, flashinfer
from .flash_attention import FlashAttentionPrompts
from .flashinfer import FlashInferPrompts
from .prompt_table import FLASH_ATTENTION, FLASHINFER, RULES, PromptShape, Rule

if TYPE_CHECKING:
    from tenon_platforms.batch import AttentionBatch
    from tenon_platforms.device import Device
    from tenon_triton.attention.long_prompts import LongPrompts, PromptsPlan

    from ..capabilities import Arch

AUTO, TRITON = "auto", "triton"
LOG = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class ChosenPrompts:
    """`tenon_triton.attention.LongPrompts` of several. rules: which of `libraries` serves a shape; else `own`.

    forced: the library that serves whatever it takes, by the operator's word.
    """

    libraries: dict[str, LongPrompts]
    rules: tuple[Rule, ...]
    forced: str | None
    own: LongPrompts | None
    _is_told: bool = field(default=False, init=False)

    @property
    def graph_support(self) -> GraphSupport:
        """The least of whoever may serve a static key: rules name none there."""
        servants = (self.libraries[self.forced] if self.forced else None, self.own)
        return min((one.graph_support for one in servants if one is not None), default=GraphSupport.ALWAYS)

    @property
    def needs_exact_host_lengths(self) -> bool:
        return any(one.needs_exact_host_lengths for one in self._all())

    @property
    def workspace_bytes(self) -> int:
        return sum(one.workspace_bytes for one in self._all())

    def takes(self, spec: AttentionSpec, block_size: int) -> bool:
        if self.forced and not self._is_told and not self.libraries[self.forced].takes(spec, block_size):
            self._is_told = True
            LOG.warning(
                "cuda.attention=%s: it takes no blocks of %d tokens, prompts go through our kernels;"
                " flash-attn 2 wants --platform-opt cuda.kv_block_size=256, its other editions at most 64",
                self.forced,
                block_size,
            )
        return any(one.takes(spec, block_size) for one in self._all())

    def warm(self, spec: AttentionSpec, block_size: int) -> None:
        for one in self._all():
            if one.takes(spec, block_size):
                one.warm(spec, block_size)

    def plan(self, batch: AttentionBatch, first_row: int, spec: AttentionSpec) -> PromptsPlan | None:
        name = self.forced or self._by_rule(batch, first_row)
        for one in (self.libraries.get(name) if name else None, self.own):
            if one is not None and one.takes(spec, batch.block_size):
                planned = one.plan(batch, first_row, spec)
                if planned is not None:
                    return planned
        return None

    def _by_rule(self, batch: AttentionBatch, first_row: int) -> str | None:
        host = batch.host
        if batch.key.static or first_row >= host.num_rows:
            return None
        shape = PromptShape(
            rows=host.num_rows - first_row,
            tokens=host.num_tokens - int(host.query_lens[:first_row].sum()),
            context=int(host.seq_lens[first_row:].max()),
        )
        return next((rule.library for rule in self.rules if rule.holds(shape)), None)

    def _all(self) -> tuple[LongPrompts, ...]:
        return tuple(one for one in (*self.libraries.values(), self.own) if one is not None)


def require(attention: str, arch: Arch) -> None:
    """Raises `ConfigError` where the operator named a library that is not there, or not for this GPU."""
    missing: No | None = None
    if attention == FLASHINFER:
        missing = flashinfer.unavailable(arch)
    elif attention == FLASH_ATTENTION:
        edition = flash_attention.edition_for(arch)
        missing = edition if isinstance(edition, No) else None
    if missing is not None:
        raise ConfigError(
            f"--platform-opt cuda.attention={attention}: {missing.reason}",
            remedy=missing.alternative or "leave the option out",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLibraries:
    """What is asked of libraries on one GPU. attention: the option; rules: `prompt_table`'s."""

    attention: str
    device: Device
    arch: Arch
    compute_units: int
    rules: tuple[Rule, ...] = RULES

    def prompts(self, spec: AttentionSpec, own: LongPrompts | None) -> ChosenPrompts | No:
        """Those libraries that serve `spec` beside `own`, or why none does."""
        if self.attention == TRITON:
            return No("--platform-opt cuda.attention=triton asks no library")
        rules = tuple(rule for rule in self.rules if rule.covers(self.arch, spec))
        forced = None if self.attention == AUTO else self.attention
        named = {forced} if forced else {rule.library for rule in rules}
        wanted = [name for name in LIBRARIES if name in named]
        if not wanted:
            return No(
                f"no library was measured faster for such heads on {self.arch}",
                f"--platform-opt cuda.attention={FLASHINFER} or {FLASH_ATTENTION} sends it all prompts",
            )
        answers = {name: MAKERS[name](self, spec) for name in wanted}
        libraries = {name: answer for name, answer in answers.items() if not isinstance(answer, No)}
        if not libraries:
            return No("; ".join(f"{name}: {answer}" for name, answer in answers.items()))
        return ChosenPrompts(libraries=libraries, rules=rules, forced=forced, own=own)


def _flashinfer(asked: PromptLibraries, spec: AttentionSpec) -> LongPrompts | No:
    refused = flashinfer.refused(spec, asked.arch)
    return refused or FlashInferPrompts(
        spec=spec, device=asked.device, arch=asked.arch, compute_units=asked.compute_units
    )


def _flash_attention(asked: PromptLibraries, spec: AttentionSpec) -> LongPrompts | No:
    edition = flash_attention.edition_for(asked.arch)
    if isinstance(edition, No):
        return edition
    refused = flash_attention.refused(spec, asked.arch)
    return refused or FlashAttentionPrompts(spec=spec, edition=edition, device=asked.device)


MAKERS: dict[str, Callable[[PromptLibraries, AttentionSpec], LongPrompts | No]] = {
    FLASHINFER: _flashinfer,
    FLASH_ATTENTION: _flash_attention,
}
