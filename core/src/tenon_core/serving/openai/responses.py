"""OpenAI's Responses: made, asked for again, cancelled, deleted, listed by their input items."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tenon_platforms.errors import RequestError, TenonError

from ..answer_types import DeletedResponse, InputTokens
from ..answers import Head, json_response
from ..body import read_object
from ..chat import begin, counted
from ..deadline import ON_LATE, late
from ..errors import HttpError
from ..field_names import names_of
from ..protocol import parse
from ..response_shares import History
from ..response_store import Item, Stored
from ..services import Services, unless_gone
from ..sse import stream_response
from .response_events import error_event, events
from .response_fields import NAMES, NOT_YET, PARTS, InputTokenFields, ResponseFields, as_chat, parsed
from .response_items import checked_items, refusal
from .response_run import Run, conversation_of

LIMIT, MOST = 20, 100  # items of a page
Endpoint = Callable[[Request], Awaitable[Response]]


def create(services: Services) -> Any:
    """POST /v1/responses."""

    async def post_responses(request: Request) -> Response:
        config = services.config
        body = await read_object(request, max_bytes=config.max_body_bytes, seconds=config.body_timeout)
        fields, further = parsed(body)
        run = await started(request, services, fields, further)
        if fields.stream:
            return await streamed(request, run)
        if fields.background:
            services.keep(asyncio.get_running_loop().create_task(in_background(run, config.request_timeout)))
        else:
            await unless_gone(request, run.finish())
        return json_response(run.response())

    return post_responses


async def started(request: Request, services: Services, fields: ResponseFields, further: Mapping[str, Any]) -> Run:
    """The response, submitted. Raises `RequestError` with this API's names."""
    store, owner = services.responses, owner_of(request)
    if fields.background and fields.store is False:
        raise RequestError("a response in the background must be stored: leave store out", param="store")
    if (fields.store or fields.background) and not store.is_on:
        raise RequestError("this server stores no responses (--max-stored-responses 0)", param="store")
    if fields.background:
        store.check_room(owner)
    earlier, items = await read_input(services, owner, fields)
    head = Head(id=services.shares.new_id(), object="response", model=services.check_model(fields.model))
    with names_of(NAMES, PARTS):
        chat = await begin(request, services, as_chat(fields, further, joined_items(earlier, items)), head)
    run = Run(
        id=head.id,
        owner=owner,
        fields=fields,
        chat=chat,
        store=store,
        conversation=conversation_of(earlier, items),
        is_stored=store.is_on and fields.store is not False,
    )
    if not fields.background:  # that one keeps the time by itself
        request.scope[ON_LATE] = run.expire
    run.begin_storing()
    if fields.background and not run.is_stored:
        chat.work.abort()
        raise RequestError("the conversation is larger than what this server stores of one key", param="input")
    return run


async def read_input(
    services: Services, owner: str, fields: ResponseFields
) -> tuple[tuple[Item, ...], list[dict[str, Any]]]:
    """(the items of the response that this one follows, those of this request). Raises `RequestError`."""
    earlier = await history(services, owner, fields.previous_response_id)
    given = checked_items(fields.input if fields.input is not None else [])
    return earlier, [await resolved(services, owner, one) for one in given]


def joined_items(earlier: tuple[Item, ...], items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation's items."""
    return [*(msgspec.json.decode(data) for _, data in earlier), *items]


def count(services: Services) -> Any:
    """POST /v1/responses/input_tokens: of the same request, how many tokens the model would read."""

    async def post_input_tokens(request: Request) -> Response:
        config = services.config
        body = await read_object(request, max_bytes=config.max_body_bytes, seconds=config.body_timeout)
        parse(InputTokenFields, body, NOT_YET)  # refuses the fields that a response has beyond these
        fields, further = parsed(body)
        services.check_model(fields.model)
        with names_of(NAMES, PARTS):
            chat = as_chat(fields, further, joined_items(*await read_input(services, owner_of(request), fields)))
            return json_response(InputTokens(input_tokens=await counted(request, services, chat)))

    return post_input_tokens


async def history(services: Services, owner: str, identity: str | None) -> tuple[Item, ...]:
    """The items of an earlier response of this key's, its output among them."""
    if identity is None:
        return ()
    socket = services.shares.elsewhere(identity)
    earlier: Stored | History | None
    if socket is None:
        earlier = services.responses.get(owner, identity)
    else:
        earlier = await services.shares.history(socket, identity, owner)
    if earlier is None:
        raise HttpError(
            404,
            f"there is no response {identity!r:.200}: it was not stored, or was forgotten as others came; send the"
            " conversation itself",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    if not earlier.is_complete:
        raise RequestError(f"response {identity!r:.200} has not ended, or failed", param="previous_response_id")
    return earlier.kept if isinstance(earlier, History) else earlier.items


async def resolved(services: Services, owner: str, item: dict[str, Any]) -> dict[str, Any]:
    """The item that a reference means."""
    if item["type"] != "item_reference":
        return item
    found = services.responses.item(owner, item["id"]) or await services.shares.item(item["id"], owner)
    if found is None:
        raise refusal(f"input refers to item {item['id']!r:.80}, which no stored response has: send the item itself")
    return found


async def streamed(request: Request, run: Run) -> Response:
    """The answer as it comes. Refusals of the engine still have their own status."""
    try:
        await unless_gone(request, run.chat.work.first_news())
    except BaseException:
        run.chat.work.abort()
        run.store.remove(run.owner, run.id)
        raise
    headers = run.chat.head.headers(request)
    return stream_response(events(run, run.chat.interval), headers, release=run.leave, tell=error_event, end=b"")


async def in_background(run: Run, seconds: float) -> None:
    """Run to the end; the response itself tells what went wrong. seconds: the longest that it may take, 0: no end."""
    timer = asyncio.get_running_loop().call_later(seconds, run.expire, late(seconds)) if seconds else None
    try:
        await run.finish()
    except TenonError:
        return
    finally:
        if timer is not None:
            timer.cancel()


def owner_of(request: Request) -> str:
    """Whose responses it may see: those of its key."""
    owner: str = request.scope.get("tenon.owner", "")
    return owner


def found(services: Services, request: Request) -> Stored:
    """The response that the path names. Raises 404, also for another key's."""
    identity = request.path_params["identity"]
    entry = services.responses.get(owner_of(request), identity)
    if entry is None:
        raise not_found(identity)
    return entry


def not_found(identity: str) -> HttpError:
    """404."""
    return HttpError(404, f"there is no response {identity!r:.200} of this key", param="response_id")


def _retrieve(services: Services) -> Endpoint:
    """GET /v1/responses/ID."""

    async def get_response(request: Request) -> Response:
        if request.query_params.get("stream", "false").lower() not in ("false", "0", ""):
            raise RequestError("a stored response cannot be streamed again: leave stream out", param="stream")
        entry = found(services, request)
        return json_response(entry.response()) if entry.live is not None else raw(entry.body)

    return get_response


def raw(body: bytes) -> Response:
    """JSON that is there already."""
    return Response(body, media_type="application/json")


def _cancel(services: Services) -> Endpoint:
    """POST /v1/responses/ID/cancel."""

    async def post_cancel(request: Request) -> Response:
        entry = found(services, request)
        if entry.live is None:
            raise HttpError(400, f"response {entry.id!r} has ended: there is nothing to cancel", param="response_id")
        entry.live.cancel()
        return json_response(entry.live.response())

    return post_cancel


def _delete(services: Services) -> Endpoint:
    """DELETE /v1/responses/ID."""

    async def delete_response(request: Request) -> Response:
        entry = services.responses.remove(owner_of(request), request.path_params["identity"])
        if entry is None:
            raise not_found(request.path_params["identity"])
        if entry.live is not None:
            entry.live.cancel()
        return json_response(DeletedResponse(id=entry.id))

    return delete_response


def _input_items(services: Services) -> Endpoint:
    """GET /v1/responses/ID/input_items."""

    async def get_input_items(request: Request) -> Response:
        entry, query = found(services, request), request.query_params
        order, limit, after = query.get("order", "desc"), query.get("limit", str(LIMIT)), query.get("after")
        if order not in ("asc", "desc"):
            raise RequestError(f"order is {order!r:.80}: expected asc or desc", param="order")
        if not (limit.isascii() and limit.isdigit() and len(limit) < 6 and 1 <= int(limit) <= MOST):
            raise RequestError(f"limit is {limit!r:.80}: it must lie between 1 and {MOST}", param="limit")
        items = list(entry.items[: entry.num_input])
        if order == "desc":
            items.reverse()
        if after is not None:
            place = next((place for place, (identity, _) in enumerate(items) if identity == after), None)
            if place is None:
                raise RequestError(f"after is {after!r:.80}: no item of this response", param="after")
            items = items[place + 1 :]
        page = items[: int(limit)]
        return json_response(
            {
                "object": "list",
                "data": [msgspec.Raw(data) for _, data in page],
                "first_id": page[0][0] if page else None,
                "last_id": page[-1][0] if page else None,
                "has_more": len(page) < len(items),
            }
        )

    return get_input_items


# The routes of one response, over this process's store alone.
KEPT: dict[tuple[str, str], Callable[[Services], Endpoint]] = {
    ("GET", "/v1/responses/{identity}"): _retrieve,
    ("DELETE", "/v1/responses/{identity}"): _delete,
    ("POST", "/v1/responses/{identity}/cancel"): _cancel,
    ("GET", "/v1/responses/{identity}/input_items"): _input_items,
}


def of_one(method: str, path: str) -> Callable[[Services], Endpoint]:
    """The maker of a route of one response, whichever API process keeps it."""

    def maker(services: Services) -> Endpoint:
        here = KEPT[method, path](services)

        async def answered(request: Request) -> Response:
            socket = services.shares.elsewhere(request.path_params["identity"])
            if socket is None:
                return await here(request)
            return await services.shares.forwarded(socket, request, owner_of(request))

        return answered

    return maker
