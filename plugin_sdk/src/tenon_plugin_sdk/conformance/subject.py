"""The subject: one platform under test, its device opened, and the ways tensors go to it and come back.

Only the contract's own calls are used, so what works here works for the engine.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tenon_platforms.errors import ConfigError
from tenon_platforms.manifest import Manifest, read_manifests
from tenon_platforms.ops.table import OpTable

if TYPE_CHECKING:
    from tenon_platforms.capabilities import Capabilities
    from tenon_platforms.device import Device
    from tenon_platforms.kernel import Kernel
    from tenon_platforms.ops.spec import Spec
    from tenon_platforms.platform import Platform

    from .exceptions import Excused
    from .meters.figures import Baseline


@dataclass(slots=True, kw_only=True)
class Subject:
    """A platform under test.

    manifest: None for a platform that was made by hand. error: why it could not be opened; then only L0 is run.
    exceptions: those of its conformance.yaml. texts: its options as the operator gave them. shared: what checks made
    once for all of them (checkpoints, processes), by name; what has a `close` is closed with the subject.
    measured: figures that checks leave behind (L7). baseline: the earlier report they are compared with.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    manifest: Manifest | None = None
    error: str | None = None
    exceptions: tuple[Excused, ...] = ()
    texts: dict[str, str] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)
    baseline: Baseline | None = None
    _platform: Platform | None = None
    _device: Device | None = None
    _capabilities: Capabilities | None = None
    _table: OpTable | None = None

    @classmethod
    def installed(cls, name: str, options: Mapping[str, str] | None = None) -> Subject:
        """An installed platform by name, with options as texts. Raises `ConfigError` for an unknown name or option."""
        found = read_manifests()
        manifest = next((one for one in found.valid if one.name == name), None)
        if manifest is None:
            broken = next((one for one in found.broken if one.name == name), None)
            if broken is not None:
                return cls(name=name, error=f"the manifest of {broken.owner} cannot be used: {broken.reason}")
            known = ", ".join(sorted(one.name for one in found.valid))
            raise ConfigError(f"no platform is named {name!r}: installed are {known}", remedy="pip install the plugin")
        given = dict(options or {})
        subject = cls(name=name, options=_typed(manifest, dict(given)), manifest=manifest, texts=given)
        try:
            subject._open(_entry(manifest)(subject.options))
        except Exception:  # noqa: BLE001 - whatever a plugin raises is the finding
            subject.error = traceback.format_exc()
        return subject

    @classmethod
    def of(cls, platform: Platform) -> Subject:
        """A platform that exists already."""
        subject = cls(name=platform.name, options=dict(platform.options))
        subject._open(platform)
        return subject

    @classmethod
    def of_rank(cls, platform: Platform, rank: int, size: int) -> Subject:
        """As `of`, on the device of one of several ranks."""
        subject = cls(name=platform.name, options=dict(platform.options))
        subject._open(platform, platform.rank_device(rank, size))
        return subject

    def _open(self, platform: Platform, device: Device | None = None) -> None:
        self._platform = platform
        self._device = device or platform.device()
        self._device.open()
        self._capabilities = platform.capabilities(self._device)

    def close(self) -> None:
        """Give back the device and what checks shared."""
        for held in self.shared.values():
            if hasattr(held, "close"):
                held.close()
        self.shared.clear()
        if self._device is not None:
            self._device.close()

    @property
    def platform(self) -> Platform:
        """The platform."""
        assert self._platform is not None, self.error
        return self._platform

    @property
    def device(self) -> Device:
        """Its device, opened."""
        assert self._device is not None, self.error
        return self._device

    @property
    def capabilities(self) -> Capabilities:
        """What it claims."""
        assert self._capabilities is not None, self.error
        return self._capabilities

    @property
    def table(self) -> OpTable:
        """An op table with its offers, the same at every call."""
        if self._table is None:
            self._table = self.new_table()
        return self._table

    def new_table(self, *, batch_invariant: bool = False) -> OpTable:
        """A fresh op table with its offers."""
        table = OpTable(platform=self.name, batch_invariant=batch_invariant)
        self.platform.register_ops(table, self.device)
        return table

    def choose(self, spec: Spec, *context: Any) -> Kernel:
        """The kernel the engine would use."""
        return self.table.choose(spec, *context)

    def own_kernels(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """The platform's kernels that were chosen so far, and its offers that served nothing, with a reason."""
        choices = () if self._table is None else self._table.choices
        served = {choice.kernel.name for choice in choices if choice.source not in ("reference", "decomposed")}
        refused = {name: reason for choice in choices for name, reason in choice.refused}
        return tuple(sorted(served)), {name: refused[name] for name in sorted(set(refused) - served)}

    def to_device(self, value: Tensor) -> Tensor:
        """A copy on the device."""
        target = self.device.empty(tuple(value.shape), value.dtype)
        self.fill(target, value)
        return target

    def fill(self, target: Tensor, value: Tensor) -> None:
        """Write host values into a tensor of the device, and wait."""
        if not value.numel():
            return
        staged = self.device.host_buffer(tuple(value.shape), value.dtype)
        staged.copy_(value)
        self.device.copy(target, staged)
        self.device.synchronize()

    def to_host(self, value: Tensor) -> Tensor:
        """A copy on the host of what the device has once all queued work is done."""
        self.device.synchronize()
        if not value.numel():
            return torch.empty(tuple(value.shape), dtype=value.dtype)
        staged = self.device.host_buffer(tuple(value.shape), value.dtype)
        self.device.copy(staged, value)
        self.device.synchronize()
        return staged.clone()


def _typed(manifest: Manifest, given: dict[str, str]) -> dict[str, Any]:
    """The manifest's defaults, and over them the operator's texts, typed by the schema."""
    typed: dict[str, Any] = {spec.key: spec.default for spec in manifest.options if spec.default is not None}
    for spec in manifest.options:
        if spec.key in given:
            typed[spec.key] = spec.parse(given.pop(spec.key), f"--platform-opt {spec.key}")
    if given:
        known = ", ".join(spec.key for spec in manifest.options) or "none"
        raise ConfigError(f"platform {manifest.name!r} has no option {', '.join(given)}: known are {known}")
    return typed


def _entry(manifest: Manifest) -> Any:
    from importlib import import_module
    from operator import attrgetter

    module, _, attribute = manifest.entry.partition(":")
    return attrgetter(attribute)(import_module(module))
