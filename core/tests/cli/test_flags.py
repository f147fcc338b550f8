"""Flags come from the configuration dataclasses, all of them, and from nowhere else."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import click
import pytest

from tenon_core.cli.bench.served_start import arguments_of
from tenon_core.cli.flags import ENGINE_SECTIONS, config_flags, engine_config, flag_lines, flags_of, surface_lines
from tenon_core.cli.main import cli
from tenon_core.config import SECTIONS, EngineConfig, flag
from tenon_platforms.errors import ConfigError

pytestmark = pytest.mark.unit


def parsed(*arguments: str) -> EngineConfig:
    """What a command with the engine's flags makes of a command line."""
    found: list[EngineConfig] = []

    @click.command()
    @config_flags(*ENGINE_SECTIONS)
    def command(**values: Any) -> None:
        found.append(engine_config(values))
        assert values == {}

    command.main(list(arguments), standalone_mode=False)
    return found[0]


def test_every_field_is_a_flag_with_its_default() -> None:
    fields = {item.name: item.default for kind in SECTIONS.values() for item in dataclasses.fields(kind)}
    flags = {made.name: made for kind in SECTIONS.values() for made in flags_of(kind)}
    assert set(flags) == set(fields)
    assert {name: made.default for name, made in flags.items()} == fields
    assert all(made.help for made in flags.values())


def test_defaults_make_the_default_configuration() -> None:
    assert parsed("m") == EngineConfig.from_flat(model="m")


def test_values_of_every_kind() -> None:
    config = parsed(
        "--model=m", "--max-num-seqs", "8", "--no-enable-prefix-caching", "--dtype", "float32",
        "--memory-utilization=0.5",
    )  # fmt: skip
    assert config.scheduler.max_num_seqs == 8
    assert config.cache.enable_prefix_caching is False
    assert (config.model.dtype, config.cache.memory_utilization) == ("float32", 0.5)
    assert parsed("m", "--platform-opt", "a.b=1", "--platform-opt", "c.d=2").platform.platform_opt == ("a.b=1", "c.d=2")


@pytest.mark.parametrize("section", list(SECTIONS.values()))
def test_aliases_mean_the_same(section: type[Any]) -> None:
    samples = {bool: [], int: ["8"], float: ["0.5"], str: ["x"]}
    for made in flags_of(section):
        if made.choices is not None:
            continue
        for alias in made.aliases:
            value = samples[made.type]
            assert parsed("m", alias, *value) == parsed("m", made.names[0], *value), alias
        for on, off in zip(made.names, made.negatives, strict=bool(made.negatives)):
            if made.name != "trust_remote_code":
                assert parsed("m", on) != parsed("m", off), on


def test_environment_sets_what_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENON_DOWNLOAD_DIR", "/models")
    assert parsed("m").model.download_dir == "/models"
    assert parsed("m", "--download-dir", "/other").model.download_dir == "/other"
    monkeypatch.setenv("TENON_PLATFORM", "null")  # selection's to read, so that its messages name it
    assert parsed("m").platform.platform is None


def test_bad_values_name_the_flag() -> None:
    for arguments, told in (
        (("--max-num-seqs", "many"), "'--max-num-seqs': 'many' is not a valid integer"),
        (("--dtype", "int3"), "'--dtype': 'int3' is not one of"),
    ):
        with pytest.raises(click.BadParameter) as refused:
            parsed("m", *arguments)
        assert told in refused.value.format_message()
    with pytest.raises(ConfigError, match="max_num_seqs is 0: it must be at least 1"):
        parsed("m", "--max-num-seqs", "0")
    with pytest.raises(ConfigError, match="--trust-remote-code is not available"):
        parsed("m", "--trust-remote-code")


def test_a_model_named_twice_must_agree() -> None:
    assert parsed("m", "--model", "m").model.model == "m"
    with pytest.raises(ConfigError, match="given twice: 'a' as an argument and 'b' by --model"):
        parsed("a", "--model", "b")


def test_a_field_that_cannot_be_a_flag_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Bad:
        table: dict[str, int] | None = flag(None, "a table")  # noqa: RUF009 - that is how flags are declared

    with pytest.raises(TypeError, match=r"Bad\.table is .*dict\[str, int\]"):
        flags_of(Bad)


def test_the_servers_configuration_is_flags_of_serve() -> None:
    from tenon_core.serving.config import ServerConfig

    names = {param.name for param in cli.get_command(click.Context(cli), "serve").params}
    assert {item.name for item in dataclasses.fields(ServerConfig)} <= names
    assert {item.name for kind in SECTIONS.values() for item in dataclasses.fields(kind)} <= names


def test_the_surface_names_environment_variables() -> None:
    lines = set(surface_lines(cli))
    assert "tenon serve --platform text [TENON_PLATFORM]" in lines
    assert "tenon serve --api-key text ... [TENON_API_KEY]" in lines
    assert "tenon bench host --requests integer range ..." in lines


def test_help_shows_sections_defaults_and_environment(tenon: Callable[..., Any]) -> None:
    text = " ".join(tenon("ops", "--help").out.split())
    for words in ("Scheduler options", "[default: 256]", "TENON_PLATFORM", "--no-enable-prefix-caching"):
        assert words in text, words


def test_a_configuration_round_trips_through_the_command_line() -> None:
    config = EngineConfig.from_flat(
        model="m", max_num_seqs=3, enable_prefix_caching=False, strict=True, platform_opt=("a.b=-1",), dtype="float16"
    )
    assert parsed(*arguments_of(config)) == config


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, f"{path} {name}")


@pytest.mark.parametrize(("path", "command"), [pytest.param(p, c, id=p) for p, c in commands(cli, "tenon")])
def test_no_flag_is_declared_twice_and_all_have_help(path: str, command: click.Command) -> None:
    names = Counter(name for param in command.params for name in (*param.opts, *param.secondary_opts))
    assert not [name for name, count in names.items() if count > 1]
    options = [param for param in command.params if isinstance(param, click.Option)]
    assert all(option.help for option in options)
    for line in flag_lines(command, path):
        assert line.startswith(path) and line.isascii()
