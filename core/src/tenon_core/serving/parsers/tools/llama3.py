"""Llama 3.1 to 3.3's calls as JSON, and Llama 3.2's and 4's as a Python list.

Source: Meta's prompt formats for Llama 3.1, 3.2 and 4 (llama.com/docs/model-cards-and-prompt-formats) and the chat
template of meta-llama/Llama-3.1-8B-Instruct: the whole answer is `{"name": ..., "parameters": {...}}`, several with `;`
between, `<|python_tag|>` before it at times; or `[name(key=value), ...]`, in Llama 4 between python marks.
"""

from __future__ import annotations

from ..formats.json_calls import JsonCalls
from ..formats.python_calls import PythonCalls

LLAMA3_JSON = JsonCalls(
    openers=("<|python_tag|>",),
    bare="{",
    separators=";",
    signs=(("<|start_header_id|>", '"parameters": dictionary'), ("<|start_header_id|>", '\\"parameters\\": ')),
)
PYTHONIC = PythonCalls(bare="[", signs=(("<|start_header_id|>", "[func_name1(params_name1=params_value1"),))
LLAMA4_PYTHONIC = PythonCalls(
    openers=("<|python_start|>",),
    bare="[",
    closers=("<|python_end|>",),
    signs=(("<|header_start|>", "[func_name1(params_name1=params_value1"), ("<|header_start|>", "<|python_start|>")),
)
