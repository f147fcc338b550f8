"""Finding the op behind wrong tokens: which of a platform's kernels, swapped to the reference, makes them right.

First each op alone, in the order the model asks for them; where none suffices, the smallest set that does. Then the
same among that op's specs. The right tokens are those of the reference platform, on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tenon_core.config import EngineConfig
from tenon_platforms.errors import ConfigError
from tenon_platforms.ops.spec import Spec

from .runs import Ran, run_greedy
from .swapping import Swap, SwappingTable

REFERENCE = "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """The first token that differs. lead: of the reference's best over its second, in log-probability."""

    prompt: int
    place: int
    found: int
    expected: int
    lead: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A spec whose kernel, swapped to the reference, takes the mismatch away (alone, or with the others named)."""

    op: str
    kernel: str
    spec: str
    fingerprint: str


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What was found. cause: "none", "ops", "execution" (eagerly it is right), or "elsewhere" (no swap helps).

    near_ties: prompts that part from the reference where its two best are too close to call, which is no fault. tried:
    (what ran on the reference, what came of it), in order.
    """

    platform: str
    dtype: str
    cause: str = "none"
    mismatch: Mismatch | None = None
    near_ties: int = 0
    culprits: tuple[Culprit, ...] = ()
    tried: list[tuple[str, str]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Bisection:
    """One search. on_try(what runs on the reference) is told before every run."""

    config: EngineConfig
    prompts: Sequence[Sequence[int]]
    max_tokens: int
    on_try: Callable[[str], None] = lambda what: None
    _right: Ran = field(init=False)
    _verdict: Verdict = field(init=False)

    def search(self) -> Verdict:
        """Run, compare, and swap until it is right. Raises `TenonError` where nothing can be run at all."""
        found = self._run(self.config, Swap(), "nothing")
        if found.platform == REFERENCE:
            raise ConfigError("the reference platform is what is compared with", remedy="pass --platform NAME")
        self._right = self._run(self._reference_config(found), Swap(), "everything, on the host")
        self._verdict = Verdict(platform=found.platform, dtype=found.dtype.value)
        self._verdict.mismatch = self._mismatch(found)
        self._verdict.near_ties = sum(one.lead < tie_threshold(found.dtype.value) for one in self._partings(found))
        if self._verdict.mismatch is None:
            return self._verdict
        choices = [one for one in found.table.choices if one.source == found.platform]
        specs = list(dict.fromkeys(one.spec for one in choices))
        kernels = {one.spec: one.kernel.name for one in choices}
        ops = self._least(list(dict.fromkeys(spec.op for spec in specs)), lambda names: Swap(ops=frozenset(names)))
        if ops is None:
            self._verdict.cause = "execution" if self._is_right_eagerly() else "elsewhere"
            return self._verdict
        inside = {spec.fingerprint(): spec for spec in specs if spec.op in ops}
        guilty = self._least(list(inside), lambda prints: Swap(specs=frozenset(prints)), inside) or list(inside)
        self._verdict.cause = "ops"
        self._verdict.culprits = tuple(_culprit(inside[one], kernels) for one in guilty)
        return self._verdict

    def _least(
        self, names: list[str], swap: Callable[[Iterable[str]], Swap], specs: dict[str, Spec] | None = None
    ) -> list[str] | None:
        """The first name whose swap suffices, or the least of all of them that do; None: not even all do."""

        def told(chosen: Iterable[str]) -> str:
            return ", ".join(name if specs is None else specs[name].summary() for name in chosen)

        if specs is not None and len(names) == 1:
            return names
        for name in names:
            if self._is_right(swap([name]), told([name])):
                return [name]
        if not self._is_right(swap(names), told(names)):
            return None
        left = list(names)
        for name in names:
            fewer = [other for other in left if other != name]
            if fewer and self._is_right(swap(fewer), told(fewer)):
                left = fewer
        return left

    def _is_right(self, swap: Swap, what: str) -> bool:
        """Whether the tokens are right under a swap. One that this platform cannot run is told, and is not right."""
        try:
            right = self._mismatch(self._run(self.config, swap, what)) is None
        except ConfigError as error:
            self._verdict.tried.append((what, f"cannot be swapped: {error.message}"))
            return False
        self._verdict.tried.append((what, "right" if right else "still wrong"))
        return right

    def _is_right_eagerly(self) -> bool:
        if self.config.platform.enforce_eager:
            return False
        config = EngineConfig.from_flat(**{**self.config.flat(), "enforce_eager": True})
        eager = self._run(config, Swap(), "nothing, with --enforce-eager")
        right = self._mismatch(eager) is None
        self._verdict.tried.append(("nothing, with --enforce-eager", "right" if right else "still wrong"))
        return right

    def _run(self, config: EngineConfig, swap: Swap, what: str) -> Ran:
        self.on_try(what)
        return run_greedy(
            config, self.prompts, max_tokens=self.max_tokens, make_table=partial(SwappingTable, swap=swap)
        )

    def _reference_config(self, found: Ran) -> EngineConfig:
        """The same on the reference platform, in the types that were found."""
        own: dict[str, Any] = {
            "platform": REFERENCE,
            "platform_opt": (),
            "dtype": found.dtype.value,
            "kv_cache_dtype": found.kv_dtype.value,
            "strict_ops": False,
        }
        return EngineConfig.from_flat(**{**self.config.flat(), **own})

    def _mismatch(self, ran: Ran) -> Mismatch | None:
        """Where a prompt's tokens first differ, unless at a near tie; of several prompts the surest."""
        least = tie_threshold(ran.dtype.value)
        return max((one for one in self._partings(ran) if one.lead >= least), key=lambda one: one.lead, default=None)

    def _partings(self, ran: Ran) -> list[Mismatch]:
        """The first token of each prompt that is not the reference's: what follows it has another prompt."""
        found = []
        for prompt, (ours, right) in enumerate(zip(ran.tokens, self._right.tokens, strict=True)):
            place = next((i for i, (a, b) in enumerate(zip(ours, right, strict=True)) if a != b), None)
            if place is not None:
                lead = self._right.leads[prompt][place]
                found.append(Mismatch(prompt=prompt, place=place, found=ours[place], expected=right[place], lead=lead))
        return found


def _culprit(spec: Spec, kernels: dict[Spec, str]) -> Culprit:
    return Culprit(op=spec.op, kernel=kernels[spec], spec=spec.summary(), fingerprint=spec.fingerprint())


def tie_threshold(dtype: str) -> float:
    """Leads of the reference below this are near ties in a type: rounding alone may decide them."""
    return {"float32": 1e-3, "float16": 2e-2}.get(dtype, 1e-1)
