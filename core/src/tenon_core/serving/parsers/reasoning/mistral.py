"""Magistral's thoughts, between control tokens.

Source: the chat template of mistralai/Magistral-Small-2507 and `mistral-common`'s thinking chunks.
"""

from __future__ import annotations

from ..formats.base import ReasoningFormat
from ..tools.mistral import MARK

MISTRAL = ReasoningFormat(opens=("[THINK]",), closes=("[/THINK]",), breaks=(MARK,), signs=(("[THINK]", "[/THINK]"),))
