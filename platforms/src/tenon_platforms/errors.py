"""The one error tree of Tenon, spoken on both sides of the contract.

Every message says what went wrong, which value, and what to do. Command-line tools print the message and exit; they
never show a traceback for a `TenonError`.
"""

from __future__ import annotations


class TenonError(Exception):
    """Root of the tree. `remedy`, where given, is the sentence or command that mends the situation."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message if remedy is None else f"{message}\n  remedy: {remedy}")
        self.message = message
        self.remedy = remedy

    @property
    def kind(self) -> str:
        """The branch of this tree an error belongs to, by name: all that crosses into another process."""
        branches = [cls.__name__ for cls in type(self).__mro__ if cls.__module__ == __name__]
        return branches[0]


class ConfigError(TenonError):
    """The operator asked for something impossible: a flag, a file, a model, a combination."""


class PluginError(TenonError):
    """A platform plugin is missing, broken, too old or ambiguous."""


class CapacityError(TenonError):
    """There is not enough of something: memory, blocks, rows, queue places."""


class RequestError(TenonError):
    """One request is invalid or not servable here; no other request is affected. `param` names the field."""

    def __init__(self, message: str, *, param: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.param = param


class DeviceError(TenonError):
    """The device or its runtime failed."""
