"""gpt-oss' analysis channel. Channels are one format, read as a whole wherever one half of it is asked for.

Source: as `tools/gpt_oss.py`.
"""

from __future__ import annotations

from ..tools.gpt_oss import GPT_OSS as GPT_OSS

__all__ = ["GPT_OSS"]
