"""Qwen3-Coder's calls as tags. (Qwen 2.5 and Qwen 3 write Hermes' JSON.)

Source: the chat template of Qwen/Qwen3-Coder-30B-A3B-Instruct: `<tool_call>\\n<function=name>\\n<parameter=key>\\n
value\\n</parameter>\\n</function>\\n</tool_call>`; models leave the outer tag away at times.
"""

from __future__ import annotations

from ..formats.tag_calls import TagCalls

QWEN3_CODER = TagCalls(
    openers=("<tool_call>", "<function="),
    sections=("<tool_call>",),
    section_closers=("</tool_call>",),
    call_open="<function=",
    name_ends=(">",),
    key_open="<parameter=",
    key_close=">",
    value_close="</parameter>",
    call_close="</function>",
    has_lines=True,
    signs=(("<tool_call>", "<function=", "<parameter="),),
)
