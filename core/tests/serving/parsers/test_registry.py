"""Names, third parties, duplicates, and which parser suits which chat template."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from calls_as_written import mark

from tenon_core.hookspecs import REASONING_PARSERS, TOOL_PARSERS, installed_entries, registrations
from tenon_core.serving.config import ServerConfig
from tenon_core.serving.parsers.registry import load_parsers
from tenon_platforms.errors import ConfigError, PluginError

pytestmark = pytest.mark.unit
# What each family's chat template has that no other's has, put together from the templates the declarations name.
TEMPLATES = {
    "qwen2.5": ('{"<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\"}"}<|im_start|>', "hermes", ""),
    "qwen3": (
        '{"<|im_start|><tool_call>\\n{\\"name\\": <function-name>"} "<think>\\n\\n</think>"', "hermes", "qwen3",
    ),
    "qwen3-coder": ("<tool_call>\n<function=example>\n<parameter=a>\n</parameter>\n</function>", "qwen3_coder", ""),
    "llama-3.1": (
        '<|start_header_id|> {"name": function name, "parameters": dictionary of argument name and its value}',
        "llama3_json", "",
    ),
    "mistral": ("[AVAILABLE_TOOLS] [TOOL_CALLS] [INST]", "mistral", ""),
    "magistral": ("[THINK] [/THINK] [AVAILABLE_TOOLS] [TOOL_CALLS] [ARGS]", "mistral", "mistral"),
    "deepseek-r1": (
        f"<\uff5cAssistant\uff5c><think>\\n {mark('tool calls begin')}{mark('tool call begin')} ```json </think>",
        "deepseek_v3", "deepseek_r1",
    ),
    "deepseek-v3.1": (
        f"<\uff5cAssistant\uff5c> if not thinking </think> {mark('tool calls begin')}{mark('tool call begin')}",
        "deepseek_v31", "deepseek_v3",
    ),
    "gpt-oss": ("<|start|>assistant<|channel|>final<|message|>", "openai", ""),
    "granite-3": ("<|start_of_role|> <|tool_call|>", "granite", ""),
    "granite-4": ("<|start_of_role|> <tool_call></tool_call> \"arguments\"", "granite4", ""),
    "glm-4.5": ("[gMASK]<sop> <tool_call> <arg_key> <arg_value> <think> </think>", "glm45", "glm45"),
    "phi-4-mini": ("<|tool|> <|/tool|>", "phi4_mini_json", ""),
    "functiongemma": ("<start_of_turn> <start_function_call>", "functiongemma", ""),
    "gemma-4": ("<|turn> <|tool_call> <|channel>thought\\n<channel|>", "gemma4", "gemma4"),
    "kimi-k2-thinking": ("<|tool_calls_section_begin|> <think></think>", "kimi_k2", "kimi_k2"),
    "minimax-m2": ("<minimax:tool_call> <invoke name= <think> </think>", "minimax_m2", "minimax_m2"),
    "plain": ("{% for message in messages %}{{ message.content }}{% endfor %}", "", ""),
}  # fmt: skip


@pytest.mark.parametrize("model", TEMPLATES)
def test_auto(model: str) -> None:
    template, tools, reasoning = TEMPLATES[model]
    found = load_parsers("auto", "auto", template)
    assert (found.tool_name, found.reasoning_name) == (
        tools,
        reasoning or ("openai_gptoss" if tools == "openai" else ""),
    )
    assert load_parsers("none", "none", template).tools is None
    assert load_parsers("auto", "auto", None).tools is None


def test_names_are_those_that_users_know() -> None:
    assert set(registrations(TOOL_PARSERS)) >= {
        "hermes", "llama3_json", "pythonic", "llama4_pythonic", "mistral", "qwen3_xml", "qwen3_coder", "deepseek_v3",
        "deepseek_v31", "openai", "granite", "glm45", "phi4_mini_json", "kimi_k2", "minimax", "minimax_m2",
    }  # fmt: skip
    assert set(registrations(REASONING_PARSERS)) >= {
        "deepseek_r1", "deepseek_v3", "qwen3", "openai_gptoss", "granite", "mistral", "glm45", "kimi_k2", "minimax_m2",
    }  # fmt: skip
    for name in registrations(TOOL_PARSERS):
        assert load_parsers(name, "none", None).tools is not None
    for name in registrations(REASONING_PARSERS):
        found = load_parsers("none", name, None)
        assert found.reasoning is not None or found.channels is not None


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"--tool-call-parser is 'hermse'.*auto, none, .*hermes"):
        ServerConfig(tool_call_parser="hermse").check()
    with pytest.raises(ConfigError, match=r"--reasoning-parser is 'x'"):
        ServerConfig(reasoning_parser="x").check()
    ServerConfig(tool_call_parser="none", reasoning_parser="qwen3").check()


def test_channels_are_one_format_for_calls_and_reasoning() -> None:
    for names in (
        ("auto", "openai_gptoss"),
        ("openai", "openai_gptoss"),
        ("none", "openai_gptoss"),
        ("openai", "none"),
    ):
        assert load_parsers(*names, None).channels is not None
    with pytest.raises(ConfigError, match="hermes"):
        load_parsers("hermes", "openai_gptoss", None)


def test_listing_imports_nothing() -> None:
    code = (
        "import sys\nfrom tenon_core.hookspecs import *\n"
        "assert len(registrations(TOOL_PARSERS)) > 15 and len(registrations(REASONING_PARSERS)) > 8\n"
        "assert not [name for name in sys.modules if name.startswith('tenon_core.serving')], sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", code.replace("import *", "import REASONING_PARSERS, TOOL_PARSERS, registrations")],
        check=True,
    )


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Install a distribution with entry points and, if given, its module."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def made(distribution: str, entries: str, module: str = "", source: str = "") -> None:
        info = tmp_path / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entries)
        if module:
            (tmp_path / f"{module}.py").write_text(source)
        forget()

    def forget() -> None:
        installed_entries.cache_clear()
        registrations.cache_clear()

    yield made
    forget()


THEIRS = """
from tenon_core.serving.parsers.formats.json_calls import JsonCalls

def make():
    return JsonCalls(openers=("<<call>>",), closers=("<<end>>",), signs=(("<<call>>", "<<end>>"),))
"""


def test_a_third_party_adds_one(install: object) -> None:
    install("toy-parsers", "[tenon.tool_parsers]\ntoy = toy_parsers:make\n", "toy_parsers", THEIRS)  # type: ignore[operator]
    from reading import parser, read

    ServerConfig(tool_call_parser="toy").check()
    assert read(parser("toy"), ['<<call>>{"name": "now"}<<end>>'])["calls"] == [("id0", "now", "{}")]
    assert load_parsers("auto", "auto", "x <<call>> y <<end>>").tool_name == "toy"


def test_a_second_owner_of_a_name_is_named(install: object) -> None:
    install("toy-parsers", "[tenon.tool_parsers]\nhermes = toy_parsers:make\n")  # type: ignore[operator]
    with pytest.raises(
        PluginError, match=r"registered twice: by .*(tenon-core|toy-parsers).* and by .*(tenon-core|toy-parsers)"
    ):
        load_parsers("auto", "auto", None)


def test_one_that_is_none_and_one_that_does_not_load(install: object, caplog: pytest.LogCaptureFixture) -> None:
    entries = "[tenon.reasoning_parsers]\nodd = toy_odd:THING\nbroken = toy_missing:X\n"
    install("toy-odd", entries, "toy_odd", "THING = 3\n")  # type: ignore[operator]
    caplog.set_level("WARNING")
    with pytest.raises(PluginError, match="'odd' is 3: expected a ReasoningFormat or Harmony"):
        load_parsers("none", "odd", None)
    with pytest.raises(PluginError, match="does not load"):
        load_parsers("none", "broken", None)
    assert load_parsers("auto", "auto", "[THINK] [/THINK]").reasoning_name == "mistral"
    assert "passes over broken" in caplog.text and "passes over odd" in caplog.text
