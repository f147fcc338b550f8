"""Kimi K2's calls: a section of calls, each with an id that names the tool.

Source: MoonshotAI/Kimi-K2, docs/tool_call_guidance.md, and its chat template: `<|tool_call_begin|>functions.name:0
<|tool_call_argument_begin|>{...}<|tool_call_end|>`; later turns must repeat that id, so it is the call's own.
"""

from __future__ import annotations

from ..formats.header_calls import HeaderCalls


def header(text: str) -> tuple[str, str | None]:
    """(name, id) of `functions.name:0`."""
    name, _, number = text.rpartition(":")
    if not name or not number.isdigit():
        name = text
    return name.removeprefix("functions."), text or None


BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
KIMI_K2 = HeaderCalls(
    openers=(BEGIN, "<|tool_call_begin|>"),
    sections=(BEGIN,),
    section_closers=(END,),
    silent=(END,),
    name_ends=("<|tool_call_argument_begin|>",),
    closers=("<|tool_call_end|>",),
    header=header,
    signs=((BEGIN,), ("<|im_system|>tool_declare<|im_middle|>",)),
)
