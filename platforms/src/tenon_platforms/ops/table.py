"""The op table: offers by spec type, and the choices made, with reasons.

`choose(spec)` asks the platform's offers in order of priority, then the reference. A choice is made once per spec and
kept, so `tenon ops` can print it; nothing here runs per step. Reference kernels are imported when first chosen.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError, PluginError, TenonError
from ..kernel import Kernel, No
from .references import REFERENCES
from .spec import Spec

MakeKernel = Callable[[Any], "Kernel | No"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A platform's way to serve one spec type. `features`: those it understands; `owner`: who registered it."""

    spec_type: type[Spec]
    name: str
    make: MakeKernel
    features: frozenset[str]
    priority: int
    owner: str


@dataclass(slots=True, kw_only=True)
class Choice:
    """What was chosen for a spec. `refused`: (offer, reason) of those that did not serve. `num_uses`: layers asking."""

    spec: Spec
    kernel: Kernel
    source: str  # owner of the offer | "reference" | "decomposed"
    refused: tuple[tuple[str, str], ...]
    num_uses: int = 0

    @property
    def on_reference(self) -> bool:
        """Whether a reference kernel serves this spec although the platform is another one."""
        return self.source == "reference"


@dataclass(slots=True, kw_only=True)
class OpTable:
    """Offers and choices of one process. `strict`: refuse the reference; `batch_invariant`: only invariant kernels."""

    platform: str
    strict: bool = False
    batch_invariant: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)  # models are built by several threads
    _offers: dict[type[Spec], list[Offer]] = field(default_factory=dict)
    _choices: dict[tuple[Spec, tuple[int, ...]], Choice] = field(default_factory=dict)

    def offer(
        self,
        spec_type: type[Spec],
        name: str,
        make: MakeKernel,
        *,
        features: frozenset[str] | set[str] = frozenset(),
        priority: int = 0,
        owner: str | None = None,
    ) -> None:
        """Register `make(spec) -> Kernel | No`. Raises `PluginError` when the name is taken for this spec type."""
        owner = owner or self.platform
        offers = self._offers.setdefault(spec_type, [])
        for other in offers:
            if other.name == name:
                raise PluginError(
                    f"kernel offer {name!r} for {spec_type.op} is made twice: by {other.owner} and by {owner}"
                )
        offers.append(
            Offer(
                spec_type=spec_type,
                name=name,
                make=make,
                features=frozenset(features),
                priority=priority,
                owner=owner,
            )
        )
        offers.sort(key=lambda item: -item.priority)

    def choose(self, spec: Spec, *context: Any) -> Kernel:
        """The kernel for `spec`. `context`: objects a composite's default needs (the attention backend it writes to).

        Raises `ConfigError` when nothing may serve it: `--strict-ops`, or `--batch-invariant` without such a kernel;
        `PluginError` where an offer raises, or answers neither `Kernel` nor `No`.
        """
        key = (spec, tuple(id(item) for item in context))
        with self._lock:
            choice = self._choices.get(key)
            if choice is None:
                choice = self._choices[key] = self._make_choice(spec, context)
            choice.num_uses += 1
            return choice.kernel

    def offered(self, spec: Spec) -> Kernel | None:
        """A platform's kernel for an optional composite that has no reference, or None: then build its parts."""
        key = (spec, ())
        if key in self._choices:
            self._choices[key].num_uses += 1
            return self._choices[key].kernel
        kernel, source, refused = self._ask(spec)
        if kernel is None:
            return None
        self._choices[key] = Choice(spec=spec, kernel=kernel, source=source, refused=refused, num_uses=1)
        return kernel

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Every choice made so far, in order."""
        return tuple(self._choices.values())

    @property
    def spec_types_offered(self) -> tuple[type[Spec], ...]:
        """Spec types some platform offers a kernel for."""
        return tuple(self._offers)

    def reference_line(self) -> str | None:
        """The start-up line `N of M ops on the reference path: ...`, or None where no op is."""
        counted = [choice for choice in self._choices.values() if choice.source != "decomposed"]
        names = sorted({choice.spec.op for choice in counted if choice.on_reference})
        if not names or self.platform == "reference":
            return None
        return f"{len(names)} of {len({c.spec.op for c in counted})} ops on the reference path: {', '.join(names)}"

    def _make_choice(self, spec: Spec, context: tuple[Any, ...]) -> Choice:
        kernel, source, refused = self._ask(spec)
        if kernel is not None:
            return Choice(spec=spec, kernel=kernel, source=source, refused=refused)
        reference = REFERENCES.get(spec.op)
        if reference is None:
            raise ConfigError(f"no kernel serves {spec.summary()}: {_reasons(refused)}")
        if self.strict and not reference.composite and self.platform != "reference":
            raise ConfigError(
                f"--strict-ops: platform {self.platform!r} has no kernel for {spec.summary()} ({_reasons(refused)})",
                remedy="leave out --strict-ops to run this op on its reference kernel",
            )
        kernel = _load(reference.factory)(spec, self, *context)
        if self.batch_invariant and not reference.composite and not kernel.flags.batch_invariant:
            raise ConfigError(f"--batch-invariant: no kernel for {spec.summary()} is batch-invariant")
        return Choice(
            spec=spec, kernel=kernel, source="decomposed" if reference.composite else "reference", refused=refused
        )

    def _ask(self, spec: Spec) -> tuple[Kernel | None, str, tuple[tuple[str, str], ...]]:
        refused: list[tuple[str, str]] = []
        for offer in self._offers.get(type(spec), ()):
            missing = spec.requires - offer.features
            if missing:
                refused.append((offer.name, f"does not know the feature {', '.join(sorted(missing))}"))
                continue
            answer = _answer(offer, spec)
            if isinstance(answer, No):
                refused.append((offer.name, str(answer)))
            elif self.batch_invariant and not answer.flags.batch_invariant:
                refused.append((offer.name, "is not batch-invariant"))
            else:
                return answer, offer.owner, tuple(refused)
        return None, "", tuple(refused)


def _answer(offer: Offer, spec: Spec) -> Kernel | No:
    """What an offer says to a spec: an offer that is wrong is told, never passed over for the reference."""
    asked = f"kernel offer {offer.name!r} of {offer.owner}, asked for {spec.summary()},"
    try:
        answer: object = offer.make(spec)
    except TenonError:
        raise
    except Exception as error:
        raise PluginError(
            f"{asked} raises {type(error).__name__}: {error}",
            remedy="answer No(reason) to a spec that it does not serve",
        ) from error
    if not isinstance(answer, (Kernel, No)):
        raise PluginError(
            f"{asked} answers {answer!r}: expected Kernel or No",
            remedy="return the Kernel, or No(reason) for a spec that it does not serve",
        )
    return answer


def _load(target: str) -> Callable[..., Kernel]:
    module, _, name = target.partition(":")
    factory: Callable[..., Kernel] = getattr(importlib.import_module(module), name)
    return factory


def _reasons(refused: tuple[tuple[str, str], ...]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in refused) or "nothing is offered for it"
