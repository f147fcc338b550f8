"""IBM Granite 3.2's thoughts, which are announced in words.

Source: the model card and chat template of ibm-granite/granite-3.2-8b-instruct.
"""

from __future__ import annotations

from ..formats.base import ReasoningFormat

GRANITE = ReasoningFormat(
    opens=("Here is my thought process:", "Here's my thought process:"),
    closes=("Here is my response:", "Here's my response:"),
    signs=(("Here is my thought process:",), ("Here's my thought process:",)),
)
