"""Prompts that clients ask to be shortened."""

from __future__ import annotations

from tenon_core.sampling.params import SamplingParams
from tenon_core.sampling.validate import ModelFacts
from tenon_platforms.errors import RequestError

from .protocol import SamplingFields


def shortened(ids: list[int], fields: SamplingFields, params: SamplingParams, facts: ModelFacts) -> list[int]:
    """`truncate_prompt_tokens`: so many tokens of a prompt; -1: as many as leave room for the answer.

    `truncation_side` is where the others are left out: "left" (which is what is done without it) keeps the last ones.
    """
    count = fields.truncate_prompt_tokens
    if count is None:
        if fields.truncation_side == "right":
            raise RequestError("truncation_side goes with truncate_prompt_tokens: give both", param="truncation_side")
        return ids
    if count == 0:
        raise RequestError("truncate_prompt_tokens is 0: it must be -1 or at least 1", param="truncate_prompt_tokens")
    most = max(facts.max_model_len - (params.max_tokens or 1), 1) if count == -1 else count
    return ids[:most] if fields.truncation_side == "right" else ids[-most:]
