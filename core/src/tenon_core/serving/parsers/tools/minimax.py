"""MiniMax' calls: M1's as JSON objects, a line each, M2's as tags.

Source: MiniMax-AI/MiniMax-M1, docs/function_call_guide.md (`<tool_calls>\\n{"name": ..., "arguments": ...}\\n
</tool_calls>`), and MiniMax-AI/MiniMax-M2, docs/tool_calling_guide.md (`<minimax:tool_call>\\n<invoke name="...">\\n
<parameter name="...">value</parameter>\\n</invoke>\\n</minimax:tool_call>`).
"""

from __future__ import annotations

from ..formats.json_calls import JsonCalls
from ..formats.tag_calls import TagCalls

MINIMAX = JsonCalls(
    openers=("<tool_calls>",),
    closers=("</tool_calls>",),
    signs=(("<tool_calls>", "</tool_calls>", "<begin_of_document>"),),
)
MINIMAX_M2 = TagCalls(
    openers=("<minimax:tool_call>",),
    sections=("<minimax:tool_call>",),
    section_closers=("</minimax:tool_call>",),
    call_open='<invoke name="',
    name_ends=('">',),
    key_open='<parameter name="',
    key_close='">',
    value_close="</parameter>",
    call_close="</invoke>",
    signs=(("<minimax:tool_call>",),),
)
