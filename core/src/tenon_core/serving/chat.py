"""POST /v1/chat/completions: a conversation through the model's template, one answer or several."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tenon_core.client.bad_words import with_bad_words
from tenon_core.client.conversation import Conversation, flat_content
from tenon_core.client.generation import ActiveRequest
from tenon_core.client.outputs import CompletionOutput
from tenon_core.client.samples import SampleDelta
from tenon_core.sampling.params import SamplingParams
from tenon_core.sampling.validate import ModelFacts
from tenon_platforms.errors import RequestError

from .answers import Head, json_response, label_of, labelled
from .body import read_object
from .field_names import names_of
from .limits import shortened
from .logprobs import chat_logprobs, prompt_positions
from .protocol import ChatFields, parse
from .services import Services, Work, unless_gone
from .sse import ENCODER, Pieces, stream_response, usage_of
from .tool_use import Reading, reading_of

ROLE = "assistant"
LONG_TEXT = 32_768  # characters; longer ones are parsed in a thread


@dataclass(slots=True, kw_only=True)
class Chat:
    """One call: its fields, its head, and the request that runs for it."""

    services: Services
    fields: ChatFields
    head: Head
    work: Work
    reading: Reading

    @property
    def request(self) -> ActiveRequest:
        """The one request."""
        return self.work.requests[0]

    @property
    def echoed(self) -> str:
        """What the answer begins with: the last message's text, if it is asked for and the assistant's."""
        last = self.fields.messages[-1]
        if not self.fields.echo or last.get("role") != ROLE:
            return ""
        return flat_content(len(self.fields.messages) - 1, last.get("content"))

    def usage(self) -> dict[str, Any]:
        """Counts of tokens."""
        output = self.request.output
        num_output = sum(len(sample.token_ids) for sample in output.outputs)
        return usage_of(len(output.prompt_token_ids), num_output, output.num_cached_tokens)

    def logprobs(self, positions: Any) -> dict[str, Any] | None:
        """Log-probabilities as JSON, where they were asked for."""
        vocabulary = self.services.vocabulary
        if not self.fields.logprobs or vocabulary is None:
            return None
        as_ids = bool(self.fields.return_tokens_as_token_ids)
        return chat_logprobs(positions, vocabulary, self.fields.top_logprobs or 0, as_ids=as_ids)

    @property
    def interval(self) -> int:
        """Tokens between two pieces of a stream."""
        return self.fields.interval(self.services.config.stream_interval)

    @property
    def prompt(self) -> dict[str, Any]:
        """What of the prompt is told beside the answer, as far as it was asked for."""
        found: dict[str, Any] = {}
        if self.fields.prompt_logprobs is not None:
            found["prompt_logprobs"] = prompt_positions(self.request.output.prompt_logprobs)
        if self.fields.return_token_ids:
            found["prompt_token_ids"] = self.request.output.prompt_token_ids
        if self.fields.return_prompt_text:
            found["prompt_text"] = self.reading.prompt
        return found


def handler(services: Services) -> Any:
    """The route's function."""

    async def chat_completions(request: Request) -> Response:
        config = services.config
        body = await read_object(request, max_bytes=config.max_body_bytes, seconds=config.body_timeout)
        fields = parse(ChatFields, body)
        head = Head(
            id=f"chatcmpl-{label_of(request)}", object="chat.completion", model=services.check_model(fields.model)
        )
        with names_of({"prompt": "messages"}):
            call = await begin(request, services, fields, head)
            return await (streamed(request, call) if fields.stream else whole(request, call))

    return chat_completions


async def begin(
    request: Request, services: Services, fields: ChatFields, head: Head, *, is_clamped: bool = False
) -> Chat:
    """Check, render, encode and submit a conversation: the one way in, whatever protocol it came by.

    is_clamped: a limit beyond the context's end is its end, instead of an error.
    """
    with names_of(fields.names):
        generation, facts = services.ready_generation()
        tokenizer, conversation = services.ready_tokenizer()
        params = with_bad_words(chat_params(fields), tokenizer)
        reading = reading_of(fields, services.parsers, lets_choose=services.config.enable_auto_tool_choice)
        if reading.structured is not None:
            params = msgspec.structs.replace(params, structured_outputs=reading.structured)
        await unless_gone(request, services.grammars.check_async(params.structured_outputs))
        text, ids = await unless_gone(request, encoded(fields, conversation, reading.tools, facts))
        reading.prompt = text
        budget = None if fields.thinking_token_budget == -1 else fields.thinking_token_budget
        params = msgspec.structs.replace(params, thinking=reading.thinking_limit(budget))
        ids = shortened(ids, fields, params, facts)
        room = min(facts.max_model_len, facts.max_resident_tokens or facts.max_model_len) - len(ids)
        if is_clamped and params.max_tokens is not None and params.max_tokens > room:
            params = msgspec.structs.replace(params, max_tokens=None)
        work = Work.start(
            generation,
            [(text, ids)],
            params,
            is_watched=bool(fields.stream),
            shown_ids=reading.shown_ids(services.vocabulary),
            **labelled(fields, request),
        )
        return Chat(services=services, fields=fields, head=head, work=work, reading=reading)


async def counted(request: Request, services: Services, fields: ChatFields) -> int:
    """The tokens of a conversation's prompt. Raises `RequestError`."""
    _, conversation = services.ready_tokenizer()
    reading = reading_of(fields, services.parsers, lets_choose=services.config.enable_auto_tool_choice)
    _, ids = await unless_gone(request, encoded(fields, conversation, reading.tools))
    return len(ids)


async def encoded(
    fields: ChatFields,
    conversation: Conversation,
    tools: list[dict[str, Any]] | None,
    facts: ModelFacts | None = None,
) -> tuple[str, list[int]]:
    """(the rendered prompt, its token ids). tools: those the template describes. facts: of the model that reads it."""
    is_continued = bool(fields.continue_final_message)
    if is_continued and fields.add_generation_prompt:
        raise RequestError(
            "add_generation_prompt begins an answer and continue_final_message goes on with one: give one of the two",
            param="continue_final_message",
        )
    return await conversation.encode_async(
        fields.messages,
        add_generation_prompt=fields.add_generation_prompt is not False and not is_continued,
        variables=variables_of(fields, conversation),
        tools=tools,
        is_continued=is_continued,
        facts=facts if fields.truncate_prompt_tokens is None else None,
    )


def variables_of(fields: ChatFields, conversation: Conversation) -> dict[str, Any]:
    """The template's variables; `reasoning_effort` and `verbosity` are such where the template takes them."""
    variables = dict(fields.chat_template_kwargs or {})
    if conversation.template is None:
        return variables
    known = conversation.template.check()
    for name, neutral in (("reasoning_effort", "none"), ("verbosity", "medium")):
        value = getattr(fields, name)
        if value is not None and name in known:
            variables.setdefault(name, value)
        elif value not in (None, neutral):
            raise RequestError(f"{name} is nothing that this model's template takes", param=name)
    return variables


def chat_params(fields: ChatFields) -> SamplingParams:
    """The engine's parameters. Without a limit an answer may go on to the end of the context."""
    if fields.top_logprobs is not None and not fields.logprobs:
        raise RequestError("top_logprobs is given without logprobs: set logprobs to true", param="top_logprobs")
    if fields.add_special_tokens:
        raise RequestError("add_special_tokens: a chat's special tokens are its template's", param="add_special_tokens")
    if None not in (fields.max_tokens, fields.max_completion_tokens) and (
        fields.max_tokens != fields.max_completion_tokens
    ):
        raise RequestError("max_tokens and max_completion_tokens differ: give one", param="max_completion_tokens")
    limit = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
    count = (fields.top_logprobs or 0) if fields.logprobs else None
    try:
        most = max(fields.min_tokens or 0, 1) if limit is None else limit
        params = fields.sampling(logprobs=count, max_tokens=most, **fields.beams())
    except RequestError as error:
        if error.param == "logprobs":  # the engine's name for the chat API's field
            raise RequestError(f"top_{error.message}", param="top_logprobs") from None
        raise
    return msgspec.structs.replace(params, max_tokens=None) if limit is None else params


async def whole(request: Request, call: Chat) -> Response:
    """The answer in one piece."""
    try:
        await unless_gone(request, call.work.finish())
    finally:
        call.work.abort()
    choices = []
    for sample in call.request.samples:
        message, reason = await understood(call.reading, sample.output)
        if call.fields.echo:
            message["content"] = call.echoed + (message["content"] or "")
        choice: dict[str, Any] = {
            "index": sample.output.index,
            "message": {"role": ROLE, **message},
            "logprobs": call.logprobs(sample.position_logprobs),
            "finish_reason": reason,
            "stop_reason": sample.output.stop_reason,
        }
        if call.fields.return_token_ids:
            choice["token_ids"] = sample.output.token_ids
        choices.append(choice)
    answer: dict[str, Any] = {**call.head.whole(), "choices": choices, "usage": call.usage()}
    return json_response({**answer, **call.prompt})


async def understood(reading: Reading, output: CompletionOutput) -> tuple[dict[str, Any], str | None]:
    """(the message's content, reasoning and calls, the finish reason) of a whole sample."""
    if not reading.is_needed:
        return {"content": output.text}, output.finish_reason
    if len(output.text) < LONG_TEXT:
        return reading.message(output.index, output.text, output.finish_reason)
    return await asyncio.to_thread(reading.message, output.index, output.text, output.finish_reason)


async def streamed(request: Request, call: Chat) -> Response:
    """The answer as it comes. Refusals of the engine still have their own status."""
    try:
        await unless_gone(request, call.work.first_news())
    except BaseException:
        call.work.abort()
        raise
    return stream_response(pieces(call), call.head.headers(request), release=call.work.abort)


async def pieces(call: Chat) -> AsyncIterator[bytes]:
    """The stream's events: a role for each choice, then text, then the counts if asked for."""
    made = Pieces(replace(call.head, object="chat.completion.chunk").whole())
    begun: set[int] = set()
    try:
        async for deltas in call.work.deltas(call.interval):
            for _, delta in deltas:
                if delta.index not in begun:
                    further = call.prompt if not begun else {}
                    begun.add(delta.index)
                    yield made.of(opening(call, delta.index), {**further, **running(call)})
                choice = read_piece(call, delta) if call.reading.is_needed else piece(call, delta)
                if choice:
                    yield made.of(choice, running(call))
        if call.fields.wants_usage:
            yield made.usage(call.usage())
    finally:
        call.work.abort()


def running(call: Chat) -> dict[str, Any]:
    """The counts of tokens so far, where every piece tells them."""
    return {"usage": call.usage()} if call.fields.wants_running_usage else {}


def opening(call: Chat, index: int) -> bytes:
    """A choice's first event: who speaks."""
    found: dict[str, Any] = {
        "index": index, "delta": {"role": ROLE, "content": call.echoed}, "logprobs": None, "finish_reason": None,
    }  # fmt: skip
    return ENCODER.encode(found)


def piece(call: Chat, delta: SampleDelta) -> bytes:
    """One piece of one choice; the plain case, text alone, is put together from bytes."""
    if delta.finish_reason is None and not call.fields.logprobs and not call.fields.return_token_ids:
        return (
            b'{"index":%d,"delta":{"content":' % delta.index
            + ENCODER.encode(delta.text)
            + b'},"logprobs":null,"finish_reason":null}'
        )
    found: dict[str, Any] = {
        "index": delta.index,
        "delta": {"content": delta.text} if delta.text or delta.finish_reason is None else {},
        "logprobs": call.logprobs(delta.logprobs),
        "finish_reason": delta.finish_reason,
    }
    if delta.finish_reason is not None:
        found["stop_reason"] = delta.stop_reason
    if call.fields.return_token_ids:
        found["token_ids"] = delta.token_ids
    return ENCODER.encode(found)


def read_piece(call: Chat, delta: SampleDelta) -> bytes:
    """One piece of a choice that is parsed; empty where nothing is certain yet and nothing else is to be told."""
    new, reason = call.reading.delta(delta.index, delta.text, delta.finish_reason)
    fields = call.fields
    if not new and reason is None and not fields.logprobs and not fields.return_token_ids:
        return b""
    found: dict[str, Any] = {
        "index": delta.index,
        "delta": new,
        "logprobs": call.logprobs(delta.logprobs),
        "finish_reason": reason,
    }
    if reason is not None:
        found["stop_reason"] = delta.stop_reason
    if fields.return_token_ids:
        found["token_ids"] = delta.token_ids
    return ENCODER.encode(found)
