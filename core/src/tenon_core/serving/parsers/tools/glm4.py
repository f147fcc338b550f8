"""GLM-4.5, 4.6 and 4.7's calls: a name, then a pair of tags for each argument.

Source: the chat templates of zai-org/GLM-4.5 and GLM-4.7: `<tool_call>name\\n<arg_key>key</arg_key>\\n
<arg_value>value</arg_value>\\n</tool_call>`, in 4.7 without line ends.
"""

from __future__ import annotations

from ..formats.tag_calls import TagCalls

GLM45 = TagCalls(
    openers=("<tool_call>",),
    call_open="<tool_call>",
    name_ends=("\n", "<arg_key>", "</tool_call>"),
    key_open="<arg_key>",
    key_close="</arg_key>",
    value_open="<arg_value>",
    value_close="</arg_value>",
    call_close="</tool_call>",
    signs=(("<tool_call>", "<arg_key>", "<arg_value>"),),
)
