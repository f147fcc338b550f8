"""What callers hand to `LLM`, as lists: prompts, their sampling parameters and priorities.

Every form is checked here, before anything is submitted: a wrong one is a `RequestError` that names it, and
whatever the engine compares or adds up later is a plain number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tenon_core.sampling.params import SamplingParams
from tenon_platforms.errors import RequestError

PromptLike = str | Sequence[int] | Mapping[str, Any]
Params = SamplingParams | Iterable[SamplingParams] | None
FORMS = "text, a list of token ids, or a map with `prompt` or `prompt_token_ids`"
LEAST_PRIORITY, GREATEST_PRIORITY = -(2**31), 2**31 - 1


def as_prompts(prompts: Any) -> list[PromptLike]:
    """One prompt, or several (any iterable), as a list. A flat list of numbers is one prompt. Raises `RequestError`."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    many = as_list(prompts, "prompt")
    if many and all(isinstance(one, (int, np.integer)) for one in many):
        return [many]
    return many


def as_list(value: Any, what: str) -> list[Any]:
    """Any iterable but text and bytes; arrays and tensors as Python numbers. Raises `RequestError`."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise RequestError(f"the {what} is {type(value).__name__}: decode it to text first", param=what)
    plain = value.tolist() if callable(getattr(value, "tolist", None)) else value
    if isinstance(plain, (str, Mapping)) or not isinstance(plain, Iterable):
        raise RequestError(f"the {what} is {value!r:.80}: expected {FORMS}, or several of these", param=what)
    return list(plain)


def text_or_ids(prompt: PromptLike) -> tuple[str | None, list[int] | None]:
    """(text or None, token ids or None) of one prompt, at least one of them given. Raises `RequestError`."""
    if isinstance(prompt, str):
        return prompt, None
    if not isinstance(prompt, Mapping):
        return None, as_list(prompt, "prompt")
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is not None and not isinstance(text, str):
        raise RequestError(f"the prompt's `prompt` is {text!r:.80}: expected text", param="prompt")
    if text is None and ids is None:
        raise RequestError(
            f"the prompt is a map with {sorted(map(str, prompt))!r:.80}: expected {FORMS}", param="prompt"
        )
    return text, None if ids is None else as_list(ids, "prompt")


def as_params(params: Params, count: int) -> list[SamplingParams]:
    """Parameters for every prompt. Raises `RequestError`."""
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * count
    if isinstance(params, (str, bytes, Mapping)) or not isinstance(params, Iterable):
        raise RequestError(
            f"sampling_params is {params!r:.80}: expected SamplingParams, or a list of them", param="sampling_params"
        )
    many = list(params)
    if len(many) != count:
        raise RequestError(f"{count} prompts and {len(many)} sampling parameters", param="sampling_params")
    for place, one in enumerate(many):
        if not isinstance(one, SamplingParams):
            raise RequestError(
                f"sampling_params[{place}] is {one!r:.80}: expected SamplingParams", param="sampling_params"
            )
    return many


def as_priorities(priority: Any, count: int) -> list[int]:
    """A priority for every prompt, zero where none is given. Raises `RequestError`."""
    if priority is None:
        return [0] * count
    if not isinstance(priority, (list, tuple)):
        raise RequestError(f"priority is {priority!r:.80}: expected a list of numbers", param="priority")
    if len(priority) != count:
        raise RequestError(f"{count} prompts and {len(priority)} priorities", param="priority")
    for one in priority:
        is_number = isinstance(one, int) and not isinstance(one, bool)
        if not is_number or not LEAST_PRIORITY <= one <= GREATEST_PRIORITY:
            raise RequestError(
                f"priority holds {one!r:.80}: each is a whole number from {LEAST_PRIORITY} to {GREATEST_PRIORITY}",
                param="priority",
            )
    return list(priority)
