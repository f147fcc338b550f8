"""gpt-oss' calls, which are messages of its Harmony format.

Source: OpenAI's cookbook, "OpenAI Harmony Response Format", and the chat template of openai/gpt-oss-20b.
"""

from __future__ import annotations

from ..formats.harmony import Harmony

GPT_OSS = Harmony(signs=(("<|channel|>", "<|message|>"),))
