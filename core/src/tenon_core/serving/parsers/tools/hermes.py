"""Hermes 2 Pro's calls, which Qwen 2.5, Qwen 3 and many tunings write too.

Source: the model card of NousResearch/Hermes-2-Pro-Llama-3-8B and the chat templates of Qwen/Qwen2.5-7B-Instruct and
Qwen/Qwen3-8B: `<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>`, once a call.
"""

from __future__ import annotations

from ..formats.json_calls import JsonCalls

HERMES = JsonCalls(
    openers=("<tool_call>",),
    closers=("</tool_call>",),
    signs=(("<tool_call>", '{"name": '), ("<tool_call>", '{\\"name\\": '), ("<tool_call>", '"arguments"')),
)
