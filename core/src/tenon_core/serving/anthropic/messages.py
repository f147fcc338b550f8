"""Anthropic's Messages: an answer whole or as events, and the count of a prompt's tokens."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..answer_types import TokenCount
from ..answers import Head, json_response, new_label
from ..body import read_object
from ..chat import begin, counted
from ..field_names import names_of
from ..protocol import parse
from ..services import Services, unless_gone
from ..sse import stream_response
from .message_events import error_event, events, with_pings
from .message_fields import NAMES, NOT_YET, PARTS, CountFields, as_chat, check_thread, parsed
from .message_run import MessageRun

PING_SECONDS = 10.0  # of silence


def create(services: Services) -> Any:
    """POST /v1/messages."""

    async def post_messages(request: Request) -> Response:
        config = services.config
        body = await read_object(request, max_bytes=config.max_body_bytes, seconds=config.body_timeout)
        fields, further = parsed(body)
        head = Head(id=f"msg_{new_label()}", object="message", model=services.check_model(fields.model))
        with names_of(NAMES, PARTS):
            marks = services.parsers.reasoning is not None or services.parsers.channels is not None
            chat = as_chat(fields, further, template_variables(services), marks_thoughts=marks)
            run = MessageRun(call=await begin(request, services, chat, head, is_clamped=True), limit=fields.max_tokens)
            if not fields.stream:
                await unless_gone(request, run.finish())
                return json_response(run.message())
            return await streamed(request, run)

    return post_messages


async def streamed(request: Request, run: MessageRun) -> Response:
    """The answer as it comes. Refusals of the engine still have their own status."""
    try:
        await unless_gone(request, run.call.work.first_news())
    except BaseException:
        run.call.work.abort()
        raise
    source = with_pings(events(run, run.call.interval), PING_SECONDS)
    headers = run.call.head.headers(request)
    return stream_response(source, headers, release=run.call.work.abort, tell=error_event, end=b"")


def count(services: Services) -> Any:
    """POST /v1/messages/count_tokens."""

    async def post_count(request: Request) -> Response:
        config = services.config
        body = await read_object(request, max_bytes=config.max_body_bytes, seconds=config.body_timeout)
        check_thread(body)
        fields = parse(CountFields, body, NOT_YET)
        services.check_model(fields.model)
        with names_of(NAMES, PARTS):
            chat = as_chat(fields, {}, template_variables(services))
            return json_response(TokenCount(input_tokens=await counted(request, services, chat)))

    return post_count


def template_variables(services: Services) -> frozenset[str]:
    """What the chat template takes. Raises 503 before it is there."""
    template = services.ready_tokenizer()[1].template
    return frozenset() if template is None else template.check()
