"""Gemma's calls: Gemma 3's as Python, FunctionGemma's and Gemma 4's between marks with bare keys.

Source: Google's "Function calling with Gemma" (ai.google.dev/gemma/docs/capabilities/function-calling): a list
`[name(key=value), ...]`, also in a `tool_code` fence; the chat templates of google/functiongemma-270m-it
(`<start_function_call>call:name{key:<escape>text<escape>}<end_function_call>`) and google/gemma-4-31B-it
(`<|tool_call>call:name{key:<|"|>text<|"|>}<tool_call|>`).
"""

from __future__ import annotations

from ..formats.brace_calls import BraceCalls
from ..formats.python_calls import PythonCalls

GEMMA3 = PythonCalls(
    openers=("```tool_code",),
    bare="[",
    closers=("```",),
    signs=(("<start_of_turn>", "[func_name1(params_name1=params_value1"), ("<start_of_turn>", "tool_code")),
)
FUNCTIONGEMMA = BraceCalls(
    openers=("<start_function_call>",),
    closers=("<end_function_call>",),
    quote="<escape>",
    signs=(("<start_function_call>",),),
)
GEMMA4 = BraceCalls(
    openers=("<|tool_call>",), closers=("<tool_call|>",), quote='<|"|>', signs=(("<|tool_call>", "<|turn>"),)
)
