"""Checks of a request against the facts of the model being served. Every protocol and `LLM` call this one function.

Knows no protocol: it takes token ids and `SamplingParams`, raises `RequestError`, and returns the length at which the
request stops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tenon_platforms.errors import RequestError

from .params import SamplingParams
from .pooling import Pooling, PoolingFacts

MAX_CANDIDATES = 20  # log-probabilities of one row that every platform gives
MAX_TOKEN_VECTORS = 16 * 2**20  # bytes of one request's vectors of tokens
TokenIds = Sequence[int] | npt.NDArray[np.int32]


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a front end must know of the model to validate requests; sent once by the engine when it is ready.

    `vocab_size` is the logits width: an id at or above it cannot be embedded or chosen.
    """

    model: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    max_num_seqs: int
    max_prompt_batch: int = 2048
    max_fan_out: int = 4096
    block_size: int = 16
    num_blocks: int = 0
    max_resident_tokens: int = 0  # longest sequence that the KV cache can hold, 0: any
    max_prompt_len: int = 0  # where prompts cannot be split over steps, 0: any
    platform: str = ""
    refused_features: dict[str, str] = {}  # request feature -> reason, from the platform's capabilities
    pooling: PoolingFacts | None = None  # of a model that gives vectors or labels and generates nothing


def validate_request(
    prompt_token_ids: Sequence[int] | npt.NDArray[np.int32], params: SamplingParams, facts: ModelFacts
) -> int:
    """Check one prompt with its parameters; returns the greatest total length (prompt + output) in tokens.

    Raises `RequestError` naming the field.
    """
    if facts.pooling is not None:
        raise RequestError(
            f"this model generates nothing: it is served for {' and '.join(facts.pooling.tasks)}"
            " (--runner generate, where the checkpoint has a language-model head)",
            param="model",
        )
    prompt_len = _checked_length(prompt_token_ids, facts)
    check_prompt_len(prompt_len, facts)
    room = facts.max_model_len - prompt_len
    if params.max_tokens is not None and params.max_tokens > room:
        raise RequestError(
            f"max_tokens is {params.max_tokens}, but the prompt has {prompt_len} tokens and the context"
            f" {facts.max_model_len}: at most {room} tokens can be generated",
            param="max_tokens",
        )
    if params.min_tokens > room:
        raise RequestError(f"min_tokens is {params.min_tokens}: only {room} tokens fit", param="min_tokens")
    if params.beam_width:
        _check_beams(params, facts)
    if params.n > facts.max_num_seqs:
        raise RequestError(f"n is {params.n}: this server runs at most {facts.max_num_seqs} sequences", param="n")
    total = prompt_len + (room if params.max_tokens is None else params.max_tokens)
    if facts.max_resident_tokens and total > facts.max_resident_tokens:
        raise RequestError(
            f"the prompt has {prompt_len} tokens and the request may grow to {total}; the KV cache holds"
            f" {facts.max_resident_tokens} tokens in all: lower max_tokens or raise the KV cache's memory",
            param="max_tokens",
        )
    _check_ids("stop_token_ids", params.stop_token_ids, facts.vocab_size)
    _check_ids("logit_bias", params.logit_bias, facts.vocab_size)
    _check_ids("allowed_token_ids", params.allowed_token_ids or (), facts.vocab_size)
    ends = {*params.stop_token_ids, *facts.eos_token_ids}
    if params.min_tokens and params.structured_outputs is None and ends.issuperset(params.allowed_token_ids or (-1,)):
        raise RequestError(
            f"allowed_token_ids has only tokens that min_tokens ({params.min_tokens}) forbids at first: add others",
            param="allowed_token_ids",
        )
    if params.structured_outputs is not None and not facts.eos_token_ids:
        raise RequestError(
            "structured_outputs needs a model with an end token: this one's configuration names none",
            param="structured_outputs",
        )
    if params.bad_words and not params.bad_word_ids:
        raise RequestError("bad_words need a tokenizer, and there is none here", param="bad_words")
    for word in params.bad_word_ids:
        _check_ids("bad_words", word, facts.vocab_size)
    for feature, name in features_of(params).items():
        if reason := facts.refused_features.get(feature):
            raise RequestError(f"{name} is not available on platform {facts.platform!r}: {reason}", param=name)
    return total


def validate_pooling(prompt_token_ids: TokenIds, pooling: Pooling, facts: ModelFacts) -> int:
    """Check one pooling prompt; returns the length at which its row ends. Raises `RequestError` naming the field."""
    if facts.pooling is None:
        raise RequestError(
            "this model generates text: serve it with --runner pooling --convert embed for vectors",
            param="model",
        )
    prompt_len = _checked_length(prompt_token_ids, facts)
    check_prompt_len(prompt_len, facts)
    if facts.max_resident_tokens and prompt_len > facts.max_resident_tokens:
        raise RequestError(
            f"the prompt has {prompt_len} tokens; the KV cache holds {facts.max_resident_tokens} in all: shorten the"
            " prompt or raise the KV cache's memory",
            param="prompt",
        )
    if pooling.per_token and prompt_len * facts.pooling.width * 4 > MAX_TOKEN_VECTORS:
        raise RequestError(
            f"the prompt has {prompt_len} tokens, whose vectors take more than {MAX_TOKEN_VECTORS} bytes: shorten it",
            param="prompt",
        )
    if not 0 <= pooling.segment_start <= prompt_len:
        raise RequestError(f"segment_start is {pooling.segment_start}: the prompt has {prompt_len}", param="prompt")
    return prompt_len + 1


def beam_ends(params: SamplingParams, facts: ModelFacts) -> tuple[int, ...]:
    """Tokens that finish a beam."""
    return tuple({*params.stop_token_ids, *(() if params.ignore_eos else facts.eos_token_ids)})


def _check_beams(params: SamplingParams, facts: ModelFacts) -> None:
    if params.beam_width > facts.max_num_seqs:
        raise RequestError(
            f"beam_width is {params.beam_width}: this server runs at most {facts.max_num_seqs} sequences",
            param="beam_width",
        )
    num_ends = len(beam_ends(params, facts))
    most = min(MAX_CANDIDATES, facts.vocab_size) - num_ends
    if params.beam_width > most:
        remedy = (
            f"at most {most} beams are searched"
            if most > 0
            else "too many for a beam search: give fewer stop_token_ids"
        )
        raise RequestError(
            f"beam_width is {params.beam_width}, and {num_ends} tokens end a text: {remedy}", param="beam_width"
        )
    if reason := facts.refused_features.get("logprobs"):
        raise RequestError(f"beam search is not available on platform {facts.platform!r}: {reason}", param="beam_width")


def _checked_length(ids: TokenIds, facts: ModelFacts) -> int:
    if len(ids) == 0:
        raise RequestError("the prompt is empty: at least one token is needed", param="prompt")
    _check_prompt(ids, facts.vocab_size)
    return len(ids)


def check_prompt_len(prompt_len: int, facts: ModelFacts, *, is_least: bool = False) -> None:
    """Refuse a prompt that is too long for the model. is_least: it may have more tokens than these."""
    count = f"at least {prompt_len}" if is_least else f"{prompt_len}"
    if facts.pooling is None and prompt_len >= facts.max_model_len:
        raise RequestError(
            f"the prompt has {count} tokens; the model's context is {facts.max_model_len} and one is needed"
            " after the prompt: shorten the prompt or raise --max-model-len",
            param="prompt",
        )
    if prompt_len > facts.max_model_len:
        raise RequestError(
            f"the prompt has {count} tokens; the model's context is {facts.max_model_len}: shorten the prompt,"
            " set truncate_prompt_tokens or raise --max-model-len",
            param="prompt",
        )
    if facts.max_prompt_len and prompt_len > facts.max_prompt_len:
        raise RequestError(
            f"the prompt has {count} tokens; this server computes prompts in one step of at most"
            f" {facts.max_prompt_len}: raise --max-num-batched-tokens",
            param="prompt",
        )


def features_of(params: SamplingParams) -> dict[str, str]:
    """The request features a platform may refuse, as its capabilities name them -> the field that asks for it."""
    asked = {
        "seed": params.seed is not None,
        "penalties": params.needs_penalties,
        "logprobs": params.logprobs is not None,
        "prompt_logprobs": params.prompt_logprobs is not None,
        "logit_bias": bool(params.logit_bias),
        "allowed_token_ids": params.allowed_token_ids is not None,
        "min_p": params.min_p > 0,
        "top_k": params.top_k > 0,
        "top_p": params.top_p < 1,
    }
    found = {name: name for name, wanted in asked.items() if wanted}
    if params.needs_mask:  # bad words and thoughts' limits are masks too
        found["structured_outputs"] = next(
            name
            for name, value in (
                ("structured_outputs", params.structured_outputs),
                ("bad_words", params.bad_words),
                ("thinking_token_budget", params.thinking),
            )
            if value
        )
    return found


def _check_prompt(ids: TokenIds, vocab_size: int) -> None:
    try:
        array = np.asarray(ids)
    except (ValueError, OverflowError):
        array = np.asarray(None)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise RequestError("the prompt must be text or a flat list of whole-number token ids", param="prompt")
    outside = array[(array < 0) | (array >= vocab_size)]
    if len(outside):
        raise RequestError(
            f"prompt holds {int(outside[0])}: token ids lie between 0 and {vocab_size - 1}", param="prompt"
        )


def _check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise RequestError(f"{name} holds {token!r:.80}: token ids lie between 0 and {vocab_size - 1}", param=name)
