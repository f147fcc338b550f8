"""DeepSeek's calls: V3, V3-0324 and R1-0528 with a type and a code fence, V3.1 without.

Source: the chat templates of deepseek-ai/DeepSeek-V3-0324, DeepSeek-R1-0528 and DeepSeek-V3.1. The marks are spelled
with a full-width bar (U+FF5C) and a lower one eighth block (U+2581).
"""

from __future__ import annotations

from ..formats.header_calls import HeaderCalls


def mark(words: str) -> str:
    """A control token of DeepSeek's."""
    return "<\uff5c" + words.replace(" ", "\u2581") + "\uff5c>"


BEGIN, END = mark("tool calls begin"), mark("tool calls end")
CALL_BEGIN, CALL_END, SEPARATOR = mark("tool call begin"), mark("tool call end"), mark("tool sep")


def typed_header(text: str) -> tuple[str, str | None]:
    """(name, None) of a header `function<sep>name`."""
    return text.rpartition(SEPARATOR)[2].strip(), None


DEEPSEEK_V3 = HeaderCalls(
    openers=(BEGIN, CALL_BEGIN),
    sections=(BEGIN,),
    section_closers=(END,),
    silent=(END,),
    name_ends=("```json", "{"),
    closers=("```", CALL_END),
    header=typed_header,
    signs=((BEGIN, CALL_BEGIN, "```json"),),
)
DEEPSEEK_V31 = HeaderCalls(
    openers=(BEGIN, CALL_BEGIN),
    sections=(BEGIN,),
    section_closers=(END,),
    silent=(END,),
    name_ends=(SEPARATOR,),
    closers=(CALL_END,),
    signs=((BEGIN, CALL_BEGIN),),
)
