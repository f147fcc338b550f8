"""Phi-4-mini's calls: a JSON list behind a word, or objects between marks.

Source: the model card of microsoft/Phi-4-mini-instruct (`<|tool_call|>[...]<|/tool_call|>`) and Microsoft's
PhiCookBook on function calling (`functools[{"name": ..., "arguments": ...}, ...]`).
"""

from __future__ import annotations

from ..formats.json_calls import JsonCalls

PHI4_MINI = JsonCalls(
    openers=("functools", "<|tool_call|>"),
    closers=("<|/tool_call|>",),
    signs=(("<|tool|>", "<|/tool|>"), ("functools[",)),
)
