"""Gemma 4's thoughts, a channel before the answer. (Gemma 3 has none.)

Source: the chat template of google/gemma-4-31B-it: `<|channel>thought\\n...<channel|>`, closed in the prompt where
thinking is off.
"""

from __future__ import annotations

from ..formats.base import ReasoningFormat

GEMMA4 = ReasoningFormat(
    opens=("<|channel>thought",),
    closes=("<channel|>",),
    breaks=("<|tool_call>",),
    signs=(("<|channel>thought",), ("<|channel>", "<channel|>")),
)
