"""IBM Granite's calls: a JSON list behind a mark (3.x), Hermes' tags (4), one object a mark (20B function calling).

Source: the chat templates of ibm-granite/granite-3.0-8b-instruct and granite-3.1-8b-instruct (`<|tool_call|>` and
`<tool_call>` before a list), granite-4.0-h-small (`<tool_call>{...}</tool_call>`), and the model card of
granite-20b-functioncalling (`<function_call> {"name": ..., "arguments": ...}`).
"""

from __future__ import annotations

from ..formats.json_calls import JsonCalls

_ROLE = "<|start_of_role|>"
GRANITE = JsonCalls(
    openers=("<|tool_call|>", "<tool_call>"), closers=("</tool_call>",), signs=((_ROLE, "<|tool_call|>"),)
)
GRANITE4 = JsonCalls(
    openers=("<tool_call>",), closers=("</tool_call>",), signs=((_ROLE, "<tool_call>", "</tool_call>"),)
)
GRANITE_20B_FC = JsonCalls(openers=("<function_call>",), signs=(("<function_call>", "Granite"),))
