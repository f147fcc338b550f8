"""`tenon` itself: what help imports, how errors end, what an interrupt does."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import click
import pytest

from tenon_core.cli import main as main_module
from tenon_core.cli.main import COMMANDS, cli, run
from tenon_platforms.errors import CapacityError, ConfigError, DeviceError, PluginError, RequestError, TenonError

pytestmark = pytest.mark.unit
HEAVY = {"torch", "numpy", "fastapi", "starlette", "uvicorn", "zmq", "transformers", "tokenizers", "rich", "httpx"}
HELP_MODULES = 600  # measured about 250 with the interpreter's own; ten times a small command line's


def modules_after(*arguments: str) -> set[str]:
    code = (
        "import json, sys\nfrom tenon_core.cli.main import run\n"
        f"assert run({list(arguments)!r}) == 0\n"
        "print(); print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [("--help",), ("bench", "--help"), ("version",)])
def test_help_is_light(arguments: tuple[str, ...]) -> None:
    modules = modules_after(*arguments)
    assert not HEAVY & {name.partition(".")[0] for name in modules}
    assert not {name for name in modules if name.startswith(("tenon_cpu", "tenon_plugin_sdk"))}
    assert len(modules) < HELP_MODULES


def test_help_lists_every_command_in_a_line(tenon: Callable[..., Any]) -> None:
    ran = tenon("--help")
    assert ran.code == 0
    for name, (_, line) in COMMANDS.items():
        assert any(row.split()[:1] == [name] and line in row for row in ran.out.splitlines()), name


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help(tenon: Callable[..., Any], name: str) -> None:
    ran = tenon(name, "--help")
    assert ran.code == 0 and "--help" in ran.out


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """A command `boom` that raises `error`."""

    @click.command()
    def boom() -> None:
        raise error

    monkeypatch.setitem(cli.commands_table, "boom", (f"{__name__}:unused", "raises"))
    monkeypatch.setattr(cli, "get_command", lambda context, name: boom)


@pytest.mark.parametrize(
    ("kind", "code"), [(ConfigError, 2), (RequestError, 2), (PluginError, 3), (CapacityError, 4), (DeviceError, 4)]
)
def test_errors_become_a_message_and_a_code(
    tenon: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, kind: type[TenonError], code: int
) -> None:
    raising(monkeypatch, kind("the tank is 3 litres short", remedy="fill it"))
    ran = tenon("boom")
    assert (ran.code, ran.out) == (code, "")
    assert ran.err == "error: the tank is 3 litres short\nremedy: fill it\n"


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_debug_shows_the_traceback(tenon: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    raising(monkeypatch, ConfigError("wrong"))
    if how == "environment":
        monkeypatch.setenv("TENON_DEBUG", "1")
    ran = tenon(*(["--debug"] if how == "flag" else []), "boom")
    assert ran.code == 2
    assert "Traceback" in ran.err and ran.err.endswith("error: wrong\n")


def test_a_bug_keeps_its_traceback(tenon: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, ZeroDivisionError("1/0"))
    with pytest.raises(ZeroDivisionError):
        tenon("boom")


def test_interrupt_exits_130(tenon: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    assert tenon("boom").code == 130


def test_unknown_command_and_flag(tenon: Callable[..., Any]) -> None:
    ran = tenon("doctr")
    assert ran.code == 2 and "did you mean 'doctor'" in ran.err and "remedy: see tenon --help" in ran.err
    ran = tenon("plugins", "--jsn")
    assert ran.code == 2 and ran.err.startswith("error: No such option") and "tenon plugins --help" in ran.err


@pytest.mark.parametrize("command", ["inspect", "ops"])
def test_unknown_model_is_a_clear_error(tenon: Callable[..., Any], command: str) -> None:
    ran = tenon(command, "/no/such/model")
    assert ran.code == 2
    assert ran.err.startswith("error: ") and "/no/such/model" in ran.err and "remedy: " in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("command", ["inspect", "ops"])
def test_no_model_is_a_clear_error(tenon: Callable[..., Any], command: str) -> None:
    ran = tenon(command)
    assert ran.code == 2 and "no model is given" in ran.err and "pkg:" in ran.err


def test_a_port_in_use_is_a_clear_error(tenon: Callable[..., Any]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ran = tenon("serve", "/no/such/model", "--port", port)
    assert ran.code == 2 and f"cannot listen on 127.0.0.1:{port}" in ran.err and "remedy: " in ran.err


def test_main_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as ended:
        main_module.main(["nosuch"])
    assert ended.value.code == 2
    assert run(["version"]) == 0
