"""Thoughts between `<think>` and `</think>`: DeepSeek, Qwen 3, GLM-4.5, Kimi K2 and MiniMax.

Source: the chat templates of deepseek-ai/DeepSeek-R1 and DeepSeek-V3.1, Qwen/Qwen3-8B and QwQ-32B, zai-org/GLM-4.5,
moonshotai/Kimi-K2-Thinking and MiniMaxAI/MiniMax-M2. Some end the prompt with the opening tag, some with a closed pair;
R1's first template did neither and its model may leave the tag away, so a thought is assumed there.
"""

from __future__ import annotations

from ..formats.base import ReasoningFormat
from ..tools.kimi_k2 import BEGIN

OPEN, CLOSE = "<think>", "</think>"
DEEPSEEK_R1 = ReasoningFormat(
    opens=(OPEN,),
    closes=(CLOSE,),
    is_assumed=True,
    signs=(("<\uff5cAssistant\uff5c><think>",), ("<\uff5cAssistant\uff5c>", CLOSE)),
)
DEEPSEEK_V3 = ReasoningFormat(opens=(OPEN,), closes=(CLOSE,), signs=(("<\uff5cAssistant\uff5c>", CLOSE, "thinking"),))
QWEN3 = ReasoningFormat(
    opens=(OPEN,), closes=(CLOSE,), breaks=("<tool_call>",), signs=((OPEN, CLOSE), ("<|im_start|>", OPEN))
)
GLM45 = ReasoningFormat(opens=(OPEN,), closes=(CLOSE,), breaks=("<tool_call>",), signs=(("[gMASK]<sop>", OPEN, CLOSE),))
KIMI_K2 = ReasoningFormat(opens=(OPEN,), closes=(CLOSE,), breaks=(BEGIN,), signs=((BEGIN, OPEN, CLOSE),))
MINIMAX_M2 = ReasoningFormat(opens=(OPEN,), closes=(CLOSE,), signs=(("<minimax:tool_call>", OPEN),))
MINIMAX_M2_APPEND = ReasoningFormat(opens=(OPEN,), closes=(CLOSE,), stays=True)
