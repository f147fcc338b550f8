"""The control plane: pluggy hooks that are called a handful of times in a process, and never after *ready*.

A pluggy call costs microseconds, so nothing per step or per op comes through here. `control_plane()` is the process's
one instance; it counts calls by hook and, once frozen, refuses them. A process may start several engines: each start
opens with `platform_loaded` and ends with `ready`. Torch-free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pluggy

from .errors import PluginError

if TYPE_CHECKING:
    from .adjustments import Adjustment
    from .capabilities import Capabilities
    from .platform import Platform

PROJECT = "tenon"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class HookSpecs:
    """What can be hooked. An implementation may take any subset of the arguments."""

    @hookspec
    def tenon_platform_adjustments(self, config: Mapping[str, Any], capabilities: Capabilities) -> Sequence[Adjustment]:
        """Changes to the flat configuration, as data; the configuration itself is read-only."""
        raise NotImplementedError  # a specification is never called

    @hookspec
    def tenon_platform_loaded(self, platform: Platform) -> None:
        """The selected platform was imported and made."""

    @hookspec
    def tenon_ready(self, plan: Mapping[str, Any]) -> None:
        """A real request ran; the plan is frozen. The last hook of a start."""


class ControlPlane:
    """The hooks of one process. calls: how often each hook was called; num_late_calls: refused, after `freeze`."""

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(HookSpecs)
        self._manager.add_hookcall_monitoring(self._before, lambda outcome, name, impls, kwargs: None)
        self.calls: Counter[str] = Counter()
        self.num_late_calls = 0
        self.is_frozen = False

    def register(self, plugin: object, *, name: str | None = None) -> None:
        """Add hook implementations. One that fits no hook raises `PluginError` and leaves nothing registered."""
        try:
            registered = self._manager.register(plugin, name=name)
        except (pluggy.PluginValidationError, ValueError) as error:
            if self._manager.is_registered(plugin):
                self._manager.unregister(plugin)
            raise PluginError(f"hooks of {name or plugin!r} are refused: {error}") from error
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            self._manager.unregister(plugin)
            known = ", ".join(sorted(n for n in vars(HookSpecs) if n.startswith(f"{PROJECT}_")))
            raise PluginError(f"hooks of {registered!r} are refused: {error}; known are {known}") from error

    def unregister(self, plugin: object) -> None:
        """Take hook implementations away."""
        self._manager.unregister(plugin)

    def adjustments(self, config: Mapping[str, Any], capabilities: Capabilities) -> list[Adjustment]:
        """All adjustments, in order of registration."""
        answers = self._manager.hook.tenon_platform_adjustments(config=config, capabilities=capabilities)
        return [item for answer in reversed(answers) for item in answer]

    def platform_loaded(self, platform: Platform) -> None:
        """Tell that the platform is there. Opens a start: hooks may be called until `ready`."""
        self.is_frozen = False
        self._manager.hook.tenon_platform_loaded(platform=platform)

    def ready(self, plan: Mapping[str, Any]) -> None:
        """Tell that the engine is ready, then freeze: this is the start's last call."""
        self._manager.hook.tenon_ready(plan=plan)
        self.freeze()

    def freeze(self) -> None:
        """From now on any hook call is refused."""
        self.is_frozen = True

    def _before(self, name: str, impls: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if self.is_frozen:
            self.num_late_calls += 1
            raise PluginError(f"hook {name!r} was called after ready: hooks belong to start-up")
        self.calls[name] += 1


@lru_cache(maxsize=1)
def control_plane() -> ControlPlane:
    """The process's control plane."""
    return ControlPlane()
