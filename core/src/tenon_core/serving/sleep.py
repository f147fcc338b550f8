"""POST /sleep and /wake_up, GET /is_sleeping: the device's memory for somebody else, and back again.

They change the server for everybody, so pages of other origins may not send them: a browser would do so without asking.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tenon_core.client.link import EngineLostError
from tenon_core.client.zmq_link import ZmqLink
from tenon_core.engine.messages import SleepState
from tenon_core.engine.sleep_pools import pools_named, pools_of_level
from tenon_platforms.errors import CapacityError, ConfigError, RequestError, TenonError
from tenon_platforms.pools import Pool

from .access import refuse_other_pages
from .answer_types import Asleep
from .answers import json_response
from .errors import HttpError, not_ready
from .services import Services, SleepFace

MAX_TAGS = 8
MAX_DIGITS = 9  # of a level; Python refuses to read thousands


def sleep(services: Services) -> Any:
    """POST /sleep?level=1: weights to the host's memory, the KV cache dropped. Requests wait until it wakes up."""

    async def post_sleep(request: Request) -> Response:
        face = ready_face(services, request)
        (level,) = asked(request, "level", most=1) or ["1"]
        is_number = level.isascii() and level.isdigit() and len(level) <= MAX_DIGITS
        pools = pools_of_level(int(level) if is_number else level)
        return answered(await told(face.sleeping.sleep, face.link, pools))

    return post_sleep


def wake_up(services: Services) -> Any:
    """POST /wake_up?tags=weights&tags=kv_cache: these, or all."""

    async def post_wake_up(request: Request) -> Response:
        face = ready_face(services, request)
        return answered(await told(face.sleeping.wake, face.link, pools_named(asked(request, "tags", most=MAX_TAGS))))

    return post_wake_up


def is_sleeping(services: Services) -> Any:
    """GET /is_sleeping."""

    async def get_is_sleeping(request: Request) -> Response:
        asleep = services.asleep
        return json_response(Asleep(is_sleeping=bool(asleep), asleep=[pool.value for pool in asleep]))

    return get_is_sleeping


def ready_face(services: Services, request: Request) -> SleepFace:
    """What reaches the engine. Raises 403 for others' pages, 503 before it is ready."""
    refuse_other_pages(request, services.config.allowed_origins)
    services.ready_generation()
    face = services.sleep_face()
    if face is None:
        raise not_ready(services.state())
    return face


def asked(request: Request, name: str, *, most: int) -> list[str]:
    """The values of a query's parameter. Raises `RequestError` for others, and for too many."""
    found = request.query_params.multi_items()
    if other := [key for key, _ in found if key != name]:
        raise RequestError(f"unknown parameter {other[0]!r:.40}: {name} is all there is", param=other[0][:40])
    if len(found) > most:
        raise RequestError(f"{name} is given {len(found)} times, at most {most} are taken", param=name)
    return [value for _, value in found]


async def told(
    ask: Callable[[ZmqLink, Sequence[Pool]], Awaitable[SleepState]], link: ZmqLink, pools: Sequence[Pool]
) -> SleepState:
    """The engine's answer. Its refusals are the operator's to read: 503 with its words."""
    try:
        return await ask(link, pools)
    except (ConfigError, CapacityError) as error:
        raise HttpError(503, error.message, code="not_moved") from error
    except TenonError as error:
        raise EngineLostError("the engine is starting again: try again later") from error


def answered(state: SleepState) -> Response:
    """What sleeps now, and what was given back."""
    asleep = [pool.value for pool in state.asleep]
    return json_response(Asleep(is_sleeping=bool(asleep), asleep=asleep, bytes_given_back=state.num_bytes))
