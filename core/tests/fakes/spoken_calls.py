"""What a fake model answers that calls tools: its template renders the last message's content as the prompt."""

from __future__ import annotations

TEMPLATE = (
    '{# <tool_call> {"name": and <think> </think>: what makes it recognisable #}'
    "{% set last = messages[-1].content %}"
    "{% if last == 'show' %}{{ messages | tojson }}@@{{ tools | tojson }}@@{{ reasoning_effort }}{% else %}"
    "{% for one in messages if one.role == 'tool' %}{{ one.name }}{% endfor %}{{ last }}{% endif %}<|im_end|>"
)
CALLS = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "S\u00e3o Paulo \U0001f600"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
ANSWER = f"<think>\nWhich city \u20ac?\n</think>\n\nI look it up.\n{CALLS}"
MEANT = [("get_weather", {"city": "S\u00e3o Paulo \U0001f600"}), ("now", {})]
