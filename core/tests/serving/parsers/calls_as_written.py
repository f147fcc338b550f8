"""How each family writes calls: renderers for tests, and the cases that BFCL's categories ask for.

Written after the models' chat templates (each declaration names its source), apart from the parsers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Call = tuple[str, dict[str, Any]]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"name": name, "parameters": {"type": "object", "properties": properties}}


TEXT = {"type": "string"}
TOOLS = [
    tool("get_weather", city=TEXT, unit={"enum": ["celsius", "fahrenheit"]}, days={"type": "integer"}),
    tool("book.flight", route={"type": "object"}, seats={"type": "array"}, is_return={"type": "boolean"}),
    tool("write_file", path=TEXT, content=TEXT),
    tool("now"),
    tool("mixed", value={"type": ["string", "null"]}, ratio={"type": "number"}, free={}),
]
SCHEMAS = {one["name"]: one["parameters"] for one in TOOLS}
LONG = "".join(f'line {place}: \u00e9\u20ac\U0001f600 "quoted" back\\slash\n' for place in range(60))
CASES: dict[str, list[Call]] = {
    "simple": [("get_weather", {"city": "Paris"})],
    "multiple": [("get_weather", {"city": "Paris", "unit": "celsius", "days": 3})],
    "parallel": [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Oslo"}), ("now", {})],
    "nested": [
        (
            "book.flight",
            {"route": {"from": {"code": "CDG", "at": [1, 2.5, -3e2]}, "via": []}, "seats": [{"row": 1}, "2A"],
             "is_return": True},
        )
    ],
    "unicode": [("get_weather", {"city": "S\u00e3o Paulo \u6771\u4eac \U0001f600 \u2028 \u0301"})],
    "empty": [("now", {})],
    "long": [("write_file", {"path": "a.txt", "content": LONG}), ("now", {})],
    "marks": [("write_file", {"path": "x", "content": "a ] } , ' \" \\n <b>&amp;</b> {\"name\": [1]} \t end"})],
    "null": [("mixed", {"value": None, "ratio": 0.25, "free": [None, False]})],
}  # fmt: skip


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def named(call: Call, key: str = "arguments") -> str:
    return compact({"name": call[0], key: call[1]})


def plain(value: Any) -> str:
    return value if isinstance(value, str) else compact(value)


def hermes(calls: list[Call]) -> str:
    return "\n".join(f"<tool_call>\n{named(call)}\n</tool_call>" for call in calls)


def llama3_json(calls: list[Call]) -> str:
    return "; ".join(named(call, "parameters") for call in calls)


def python_call(call: Call) -> str:
    return f"{call[0]}({', '.join(f'{key}={value!r}' for key, value in call[1].items())})"


def pythonic(calls: list[Call]) -> str:
    return f"[{', '.join(map(python_call, calls))}]"


def mistral_list(calls: list[Call]) -> str:
    return "[TOOL_CALLS] " + compact([{"name": name, "arguments": given} for name, given in calls])


def mistral_named(calls: list[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{compact(given)}" for name, given in calls)


def mistral_braces(calls: list[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{name}{compact(given)}" for name, given in calls)


def qwen3_coder(calls: list[Call]) -> str:
    def one(call: Call) -> str:
        values = "".join(f"<parameter={key}>\n{plain(value)}\n</parameter>\n" for key, value in call[1].items())
        return f"<tool_call>\n<function={call[0]}>\n{values}</function>\n</tool_call>"

    return "\n".join(map(one, calls))


def glm45(calls: list[Call]) -> str:
    def one(call: Call) -> str:
        values = "".join(
            f"\n<arg_key>{key}</arg_key>\n<arg_value>{plain(value)}</arg_value>" for key, value in call[1].items()
        )
        return f"<tool_call>{call[0]}{values}\n</tool_call>"

    return "\n".join(map(one, calls))


def glm47(calls: list[Call]) -> str:
    def one(call: Call) -> str:
        values = "".join(
            f"<arg_key>{key}</arg_key><arg_value>{plain(value)}</arg_value>" for key, value in call[1].items()
        )
        return f"<tool_call>{call[0]}{values}</tool_call>"

    return "".join(map(one, calls))


def minimax_m2(calls: list[Call]) -> str:
    def one(call: Call) -> str:
        values = "".join(f'<parameter name="{key}">{plain(value)}</parameter>\n' for key, value in call[1].items())
        return f'<invoke name="{call[0]}">\n{values}</invoke>\n'

    return f"<minimax:tool_call>\n{''.join(map(one, calls))}</minimax:tool_call>"


def minimax(calls: list[Call]) -> str:
    return "<tool_calls>\n" + "".join(named(call) + "\n" for call in calls) + "</tool_calls>"


def mark(words: str) -> str:
    return f"<\uff5c{words.replace(' ', chr(0x2581))}\uff5c>"


def deepseek_v3(calls: list[Call]) -> str:
    begin, end = f"{mark('tool call begin')}function{mark('tool sep')}", mark("tool call end")
    written = "\n".join(f"{begin}{name}\n```json\n{compact(given)}\n```{end}" for name, given in calls)
    return mark("tool calls begin") + written + mark("tool calls end")


def deepseek_v31(calls: list[Call]) -> str:
    written = "".join(
        f"{mark('tool call begin')}{name}{mark('tool sep')}{compact(given)}{mark('tool call end')}"
        for name, given in calls
    )
    return mark("tool calls begin") + written + mark("tool calls end")


def kimi_k2(calls: list[Call]) -> str:
    written = "".join(
        f"<|tool_call_begin|>functions.{name}:{place}<|tool_call_argument_begin|>{compact(given)}<|tool_call_end|>"
        for place, (name, given) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>"


def openai(calls: list[Call]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{compact(given)}<|call|>"
        for name, given in calls
    )


def listed(opener: str, closer: str = "") -> Callable[[list[Call]], str]:
    def render(calls: list[Call]) -> str:
        return opener + compact([{"name": name, "arguments": given} for name, given in calls]) + closer

    return render


def granite_20b(calls: list[Call]) -> str:
    return "".join(f"<function_call> {named(call)}" for call in calls)


def tool_code(calls: list[Call]) -> str:
    return "```tool_code\n" + "\n".join(map(python_call, calls)) + "\n```"


def braces(opener: str, closer: str, quote: str) -> Callable[[list[Call]], str]:
    def value(one: Any, *, is_top: bool = False) -> str:
        if isinstance(one, str):
            return f"{quote}{one}{quote}"
        if isinstance(one, dict):
            return "{" + ",".join(f"{key}:{value(inner)}" for key, inner in one.items()) + "}"
        if isinstance(one, list):
            return "[" + ",".join(map(value, one)) + "]"
        return compact(one)

    def render(calls: list[Call]) -> str:
        return "".join(f"{opener}call:{name}{value(given)}{closer}" for name, given in calls)

    return render


# (parser, way of writing). Those that begin an answer (BARE) have no text before their calls.
WRITTEN: dict[str, tuple[str, Callable[[list[Call]], str]]] = {
    "hermes": ("hermes", hermes),
    "hermes, closer": ("hermes", lambda calls: "".join(f"<tool_call>{named(one)}</tool_call>" for one in calls)),
    "llama3_json": ("llama3_json", llama3_json),
    "llama3_json, mark": ("llama3_json", lambda calls: "<|python_tag|>" + llama3_json(calls)),
    "pythonic": ("pythonic", pythonic),
    "llama4_pythonic": ("llama4_pythonic", lambda calls: f"<|python_start|>{pythonic(calls)}<|python_end|>"),
    "mistral, list": ("mistral", mistral_list),
    "mistral, names": ("mistral", mistral_named),
    "mistral, braces": ("mistral", mistral_braces),
    "qwen3_coder": ("qwen3_coder", qwen3_coder),
    "qwen3_xml": ("qwen3_xml", lambda calls: qwen3_coder(calls).replace("<tool_call>", "").replace("</tool_call>", "")),
    "deepseek_v3": ("deepseek_v3", deepseek_v3),
    "deepseek_v31": ("deepseek_v31", deepseek_v31),
    "openai": ("openai", openai),
    "granite, 3.0": ("granite", listed("<|tool_call|>")),
    "granite, 3.1": ("granite", listed("<tool_call>")),
    "granite4": ("granite4", hermes),
    "granite-20b-fc": ("granite-20b-fc", granite_20b),
    "glm45": ("glm45", glm45),
    "glm47": ("glm47", glm47),
    "phi4_mini_json": ("phi4_mini_json", listed("functools")),
    "phi4_mini_json, marks": ("phi4_mini_json", listed("<|tool_call|>", "<|/tool_call|>")),
    "gemma3": ("gemma3", pythonic),
    "gemma3, fence": ("gemma3", tool_code),
    "functiongemma": ("functiongemma", braces("<start_function_call>", "<end_function_call>", "<escape>")),
    "gemma4": ("gemma4", braces("<|tool_call>", "<tool_call|>", '<|"|>')),
    "kimi_k2": ("kimi_k2", kimi_k2),
    "minimax": ("minimax", minimax),
    "minimax_m2": ("minimax_m2", minimax_m2),
}
BARE = {"llama3_json", "pythonic", "gemma3"}
ENDLESS = {"granite, 3.0", "phi4_mini_json"}  # nothing ends the calls
