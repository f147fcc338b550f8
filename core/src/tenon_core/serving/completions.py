"""POST /v1/completions: prompts as text or token ids, several at once, echoed if asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tenon_core.client.bad_words import with_bad_words
from tenon_core.client.generation import ActiveRequest
from tenon_core.client.samples import SampleDelta
from tenon_core.client.tokenizer import ClientTokenizer
from tenon_core.engine.messages import FinishReason
from tenon_core.sampling.validate import ModelFacts
from tenon_platforms.errors import RequestError

from .answers import Head, json_response, label_of, labelled
from .body import read_object
from .field_names import names_of
from .limits import shortened
from .logprobs import CompletionLogprobs, joined, prompt_positions
from .protocol import CompletionFields, Prompt, parse
from .services import Services, Work, unless_gone
from .sse import ENCODER, Pieces, stream_response, usage_of

Prompts = list[tuple[str | None, list[int]]]


@dataclass(slots=True, kw_only=True)
class Completion:
    """One call: its fields, its head, and the requests that run for it. Choice index = prompt * n + sample."""

    services: Services
    fields: CompletionFields
    head: Head
    work: Work
    n: int

    def index(self, request: ActiveRequest, sample_index: int) -> int:
        """The choice's index."""
        place = next(place for place, one in enumerate(self.work.requests) if one is request)
        return place * self.n + sample_index

    def echoed_text(self, request: ActiveRequest) -> str:
        """The prompt as text."""
        output = request.output
        if output.prompt is not None:
            return output.prompt
        assert self.services.tokenizer is not None
        return self.services.tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False)

    def usage(self) -> dict[str, Any]:
        """Counts of tokens over all prompts."""
        requests = self.work.requests
        num_generated = sum(len(sample.output.token_ids) for request in requests for sample in request.samples)
        return usage_of(
            sum(len(request.output.prompt_token_ids) for request in requests),
            0 if self.fields.is_prompt_alone else num_generated,
            sum(request.output.num_cached_tokens for request in requests),
        )

    def logprobs(self, request: ActiveRequest) -> CompletionLogprobs | None:
        """What turns one sample's log-probabilities into JSON."""
        if self.fields.logprobs is None or self.services.vocabulary is None:
            return None
        offset = 0 if self.fields.echo else len(self.echoed_text(request))
        return CompletionLogprobs(
            self.services.vocabulary,
            self.fields.logprobs,
            offset=offset,
            skip_special_tokens=self.fields.skip_special_tokens is not False,
            as_ids=bool(self.fields.return_tokens_as_token_ids),
        )


def handler(services: Services) -> Any:
    """The route's function."""

    async def completions(request: Request) -> Response:
        config = services.config
        body = await read_object(request, max_bytes=config.max_body_bytes, seconds=config.body_timeout)
        fields = parse(CompletionFields, body)
        head = Head(id=f"cmpl-{label_of(request)}", object="text_completion", model=services.check_model(fields.model))
        generation, facts = services.ready_generation()
        tokenizer, _ = services.ready_tokenizer()
        with names_of(fields.names):
            params = fields.sampling(
                max_tokens=fields.most_tokens,
                min_tokens=fields.least_tokens,
                logprobs=fields.logprobs,
                prompt_logprobs=fields.logprobs
                if fields.echo and fields.prompt_logprobs is None
                else fields.prompt_logprobs,
                **fields.beams(),
            )
            check_fan_out(fields.prompt, params.n, facts)
            await unless_gone(request, services.grammars.check_async(params.structured_outputs))
            is_cut = fields.truncate_prompt_tokens is not None  # what is left of a text is known by its tokens alone
            adds, limit = fields.add_special_tokens is not False, None if is_cut else facts
            prompts = await unless_gone(
                request, encoded(fields.prompt, tokenizer, add_special_tokens=adds, facts=limit)
            )
            prompts = [(None if is_cut else text, shortened(ids, fields, params, facts)) for text, ids in prompts]
            if fields.is_prompt_alone:
                check_alone(max(len(ids) for _, ids in prompts), facts)
            params = with_bad_words(params, tokenizer)
            work = Work.start(generation, prompts, params, is_watched=bool(fields.stream), **labelled(fields, request))
        call = Completion(services=services, fields=fields, head=head, work=work, n=params.n)
        return await (streamed(request, call) if fields.stream else whole(request, call))

    return completions


def check_fan_out(prompt: Prompt, n: int, facts: ModelFacts) -> None:
    """Refuse more sequences than a call may have, before anything is copied or encoded."""
    count = len(prompt) if is_many(prompt) else 1
    if count == 0:
        raise RequestError("prompt is empty: at least one is needed", param="prompt")
    if count > facts.max_prompt_batch:
        raise RequestError(
            f"prompt holds {count} prompts: at most {facts.max_prompt_batch} are allowed", param="prompt"
        )
    if count * n > facts.max_fan_out:
        raise RequestError(
            f"{count} prompts times n = {n} are {count * n} sequences: at most {facts.max_fan_out} are allowed",
            param="n",
        )


def check_alone(prompt_len: int, facts: ModelFacts) -> None:
    """Refuse a prompt that leaves no room for the token that the engine computes after any, wanted or not."""
    most = min(facts.max_model_len, facts.max_resident_tokens or facts.max_model_len) - 1
    if prompt_len > most:
        raise RequestError(
            f"the prompt has {prompt_len} tokens: at most {most} fit where it alone is wanted, as one token is computed"
            " after it; shorten the prompt",
            param="prompt",
        )


def is_many(prompt: Prompt) -> bool:
    """Whether it is a list of prompts."""
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], (str, list))


async def encoded(
    prompt: Prompt, tokenizer: ClientTokenizer, *, add_special_tokens: bool, facts: ModelFacts | None
) -> Prompts:
    """[(text or None, token ids)]. facts: of the model, where it is to read all of each text."""
    many: Sequence[Any] = prompt if is_many(prompt) else [prompt]
    found: Prompts = []
    for one in many:
        if isinstance(one, str):
            found.append((one, await tokenizer.encode_async(one, add_special_tokens=add_special_tokens, facts=facts)))
            if len(many) > 1:
                await asyncio.sleep(0)  # others have their turn between two of many prompts
        else:
            found.append((None, one))
    return found


async def whole(request: Request, call: Completion) -> Response:
    """The answer in one piece."""
    try:
        await unless_gone(request, call.work.finish())
    finally:
        call.work.abort()
    choices = [
        piece(call, one, sample.take_delta(), call.logprobs(one), call.index(one, sample.output.index), is_first=True)
        for one in call.work.requests
        for sample in one.samples
    ]
    return json_response({**call.head.whole(), "choices": choices, "usage": call.usage()})


def echoed_logprobs(call: Completion, request: ActiveRequest, shape: CompletionLogprobs) -> dict[str, Any]:
    """Log-probabilities of the prompt."""
    ids = request.output.prompt_token_ids
    return shape.echoed(call.echoed_text(request), ids, request.output.prompt_logprobs or [None] * len(ids))


async def streamed(request: Request, call: Completion) -> Response:
    """The answer as it comes. Refusals of the engine still have their own status."""
    try:
        await unless_gone(request, call.work.first_news())
    except BaseException:
        call.work.abort()
        raise
    return stream_response(pieces(call), call.head.headers(request), release=call.work.abort)


async def pieces(call: Completion) -> AsyncIterator[bytes]:
    """The stream's events."""
    shapes: dict[int, CompletionLogprobs | None] = {}
    made = Pieces(call.head.whole())
    try:
        async for deltas in call.work.deltas(call.fields.interval(call.services.config.stream_interval)):
            for request, delta in deltas:
                key = call.index(request, delta.index)
                if key not in shapes:
                    shapes[key] = call.logprobs(request)
                    found = piece(call, request, delta, shapes[key], key, is_first=True)
                else:
                    found = piece(call, request, delta, shapes[key], key, is_first=False)
                further = {"usage": call.usage()} if call.fields.wants_running_usage else None
                yield made.of(ENCODER.encode(found), further)
        if call.fields.wants_usage:
            yield made.usage(call.usage())
    finally:
        call.work.abort()


def piece(
    call: Completion,
    request: ActiveRequest,
    delta: SampleDelta,
    shape: CompletionLogprobs | None,
    index: int,
    *,
    is_first: bool,
) -> dict[str, Any]:
    """One piece of one sample, or all of it. The first one brings the echoed prompt."""
    fields = call.fields
    if fields.is_prompt_alone:
        ends = None if delta.finish_reason is None else FinishReason.LENGTH.text
        delta = replace(delta, text="", token_ids=[], logprobs=[], finish_reason=ends, stop_reason=None)
    text, logprobs = delta.text, None
    echoes = is_first and bool(fields.echo)
    if echoes:
        text = call.echoed_text(request) + text
    if shape is not None:
        before = echoed_logprobs(call, request, shape) if echoes else shape.of(())
        logprobs = joined(before, shape.of(delta.logprobs))
    found: dict[str, Any] = {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": delta.finish_reason,
        "stop_reason": delta.stop_reason,
    }
    if fields.prompt_logprobs is not None and is_first:
        found["prompt_logprobs"] = prompt_positions(request.output.prompt_logprobs)
    if fields.return_token_ids:
        found["token_ids"] = delta.token_ids
        if is_first:
            found["prompt_token_ids"] = request.output.prompt_token_ids
    return found
