"""The gRPC server: a key in the metadata before anything else, then the routes of the HTTP application.

Health is for everybody, reflection for those with a key. Messages are bounded as bodies are, compressed ones are not
taken, and a call that is cancelled or late ends its work as a disconnect does.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from starlette.datastructures import Headers
from starlette.types import ASGIApp

from tenon_platforms.errors import ConfigError, RequestError

from ..access import Keys
from ..config import ServerConfig
from ..errors import HttpError
from ..services import Services
from . import inference_pb2 as pb
from . import inference_pb2_grpc as stubs
from .call import Call
from .translate import chat_body, fill_chat, fill_text, generate_body, given

SERVICE = "tenon.v1.Inference"
PUBLIC = "/grpc.health.v1.Health/"
FORWARDED = ("authorization", "x-api-key", "x-request-id", "traceparent", "tracestate")
MAX_METADATA = 32 * 2**10
MAX_STREAMS = 1024  # of one connection
HEALTH_SECONDS = 0.25
NO_MESSAGE = "the bytes are no message of the type that this method takes"
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT, 401: grpc.StatusCode.UNAUTHENTICATED, 403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND, 408: grpc.StatusCode.DEADLINE_EXCEEDED, 413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED, 503: grpc.StatusCode.UNAVAILABLE, 504: grpc.StatusCode.DEADLINE_EXCEEDED,
}  # fmt: skip
Context = Any  # grpc.aio.ServicerContext, which has no types


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Asks for a key before a method is looked at, also one that does not exist; refuses bytes that are no message."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        if details.method.startswith(PUBLIC):
            return readable(await continuation(details))
        try:
            self.keys.check(headers_of(details.invocation_metadata))
        except HttpError as error:
            return _refusal(await continuation(details), error.message)
        return readable(await continuation(details))


def headers_of(metadata: Any) -> Headers:
    """Metadata as headers; binary ones are left out."""
    pairs = [(one[0], one[1]) for one in metadata or () if isinstance(one[1], str)]
    return Headers(raw=[(name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in pairs])


def readable(handler: Any) -> Any:
    """The handler of a method that takes one message, with an answer to bytes that are none: gRPC would log its own
    error with a traceback, and call it the server's."""
    if handler is None or handler.request_streaming:
        return handler
    behaviour = handler.unary_stream if handler.response_streaming else handler.unary_unary

    def read(data: bytes) -> Any:
        try:
            return handler.request_deserializer(data)
        except DecodeError:
            return _UNREADABLE

    async def answer(request: Any, context: Context) -> Any:
        if request is _UNREADABLE:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, NO_MESSAGE)
        return await behaviour(request, context)

    async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
        if request is _UNREADABLE:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, NO_MESSAGE)
        async for one in behaviour(request, context):
            yield one

    # one that writes to the context by itself is no generator
    name = "unary_stream" if handler.response_streaming else "unary_unary"
    return handler._replace(
        request_deserializer=read, **{name: stream if inspect.isasyncgenfunction(behaviour) else answer}
    )


_UNREADABLE = object()


def _refusal(handler: Any, message: str) -> Any:
    """A handler of the same kind that refuses."""

    async def refuse(_: Any, context: Context) -> NoReturn:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, message)
        raise AssertionError

    async def refuse_stream(_: Any, context: Context) -> AsyncIterator[Any]:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, message)
        yield

    if handler is None:
        return grpc.unary_unary_rpc_method_handler(refuse)
    maker = {
        (False, False): grpc.unary_unary_rpc_method_handler, (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler, (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]  # fmt: skip
    return maker(refuse_stream if handler.response_streaming else refuse)


class Inference(stubs.InferenceServicer):
    """The service, over the application."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:  # noqa: N802
        found = await self._whole(context, "/v1/completions", lambda: generate_body(request, stream=False))
        return fill_text(pb.GenerateResponse(), found)

    async def GenerateStream(  # noqa: N802
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateChunk]:
        async for found in self._stream(context, "/v1/completions", lambda: generate_body(request, stream=True)):
            yield fill_text(pb.GenerateChunk(), found)

    async def Chat(self, request: pb.ChatRequest, context: Context) -> pb.ChatResponse:  # noqa: N802
        found = await self._whole(context, "/v1/chat/completions", lambda: chat_body(request, stream=False))
        return fill_chat(pb.ChatResponse(), found)

    async def ChatStream(self, request: pb.ChatRequest, context: Context) -> AsyncIterator[pb.ChatChunk]:  # noqa: N802
        async for found in self._stream(context, "/v1/chat/completions", lambda: chat_body(request, stream=True)):
            yield fill_chat(pb.ChatChunk(), found)

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:  # noqa: N802
        body = {"prompt": request.text, **_model(request.model), **given(request, "add_special_tokens")}
        found = await self._whole(context, "/tokenize", lambda: body)
        return pb.TokenizeResponse(token_ids=found["tokens"], max_model_len=found["max_model_len"] or 0)

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:  # noqa: N802
        body = {"tokens": list(request.token_ids), **_model(request.model)}
        found = await self._whole(context, "/detokenize", lambda: body)
        return pb.DetokenizeResponse(text=found["prompt"])

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:  # noqa: N802
        found = await self._whole(context, "/v1/models", None)
        models = [pb.Model(id=one["id"], max_model_len=one["max_model_len"] or 0) for one in found["data"]]
        return pb.ListModelsResponse(models=models)

    def _call(self, context: Context, path: str, body: dict[str, Any] | None) -> Call:
        sent = headers_of(context.invocation_metadata())
        headers = [(name.encode(), sent[name].encode("latin-1")) for name in FORWARDED if name in sent]
        headers += [(b"host", b"localhost"), (b"content-type", b"application/json")]
        encoded = b"" if body is None else json.dumps(body).encode()
        return Call(
            app=self.app, method="GET" if body is None else "POST", path=path, headers=headers, body=encoded,
            client=(context.peer(), 0),
        )  # fmt: skip

    async def _whole(self, context: Context, path: str, body: Callable[[], dict[str, Any]] | None) -> Mapping[str, Any]:
        made = None if body is None else await _made(context, body)
        async with self._call(context, path, made) as call:
            status = await call.begin()
            found: dict[str, Any] = json.loads(await call.whole() or b"{}")
            if status != 200:
                await _abort(context, call, found)
            return found

    async def _stream(
        self, context: Context, path: str, body: Callable[[], dict[str, Any]]
    ) -> AsyncIterator[Mapping[str, Any]]:
        async with self._call(context, path, await _made(context, body)) as call:
            if await call.begin() != 200:
                await _abort(context, call, json.loads(await call.whole() or b"{}"))
            async for data in call.events():
                if data == b"[DONE]":
                    return
                found = json.loads(data)
                if "error" in found:
                    await _abort(context, call, found)
                yield found


def _model(name: str) -> dict[str, str]:
    return {"model": name} if name else {}


async def _made(context: Context, body: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return body()
    except RequestError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
        raise AssertionError from None


async def _abort(context: Context, call: Call, found: Mapping[str, Any]) -> NoReturn:
    """End the call as the application answered."""
    error = found.get("error") or {}
    if "retry-after" in call.answer_headers:
        context.set_trailing_metadata((("retry-after", call.answer_headers["retry-after"]),))
    code = CODES.get(call.status, grpc.StatusCode.INTERNAL)
    if call.status == 200:  # it broke off in the middle
        is_lost = error.get("code") == "engine_lost"
        code = grpc.StatusCode.UNAVAILABLE if is_lost else CODES.get(error.get("code", 0), grpc.StatusCode.INTERNAL)
    await context.abort(code, str(error.get("message") or "the call failed"))
    raise AssertionError


@dataclass(slots=True, kw_only=True)
class RpcServer:
    """A running server. port: where it listens."""

    server: Any
    port: int
    watcher: asyncio.Task[None]

    @classmethod
    async def start(cls, app: ASGIApp, services: Services) -> RpcServer:
        """Listen. Raises `ConfigError` where the address cannot be had."""
        config = services.config
        server = grpc.aio.server(
            interceptors=[Guard(Keys(config.api_key))],
            options=[
                ("grpc.so_reuseport", int(config.api_server_count > 1)),
                ("grpc.max_receive_message_length", config.max_body_bytes),
                ("grpc.max_metadata_size", MAX_METADATA),
                ("grpc.max_concurrent_streams", MAX_STREAMS),
                ("grpc.compression_enabled_algorithms_bitset", 1),  # identity
            ],
            maximum_concurrent_rpcs=config.max_connections,
        )
        state = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(state, server)
        stubs.add_InferenceServicer_to_server(Inference(app), server)  # type: ignore[no-untyped-call]
        names = (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        port = _bound(server, config)
        await server.start()
        watcher = asyncio.ensure_future(_tell_health(services, state))
        return cls(server=server, port=port, watcher=watcher)

    async def stop(self, grace: float) -> None:
        """Take no more calls, let the running ones finish for `grace` seconds."""
        await self.server.stop(grace)
        self.watcher.cancel()
        await asyncio.gather(self.watcher, return_exceptions=True)


def _bound(server: Any, config: ServerConfig) -> int:
    host = f"[{config.host}]" if ":" in config.host else config.host
    address = f"{host}:{config.grpc_port}"
    try:
        if config.ssl_certfile is not None and config.ssl_keyfile is not None:
            pair = (Path(config.ssl_keyfile).read_bytes(), Path(config.ssl_certfile).read_bytes())
            port: int = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        else:
            port = server.add_insecure_port(address)
    except RuntimeError:
        raise ConfigError(
            f"cannot listen on {address} for gRPC", remedy="stop the other server, or pass another --grpc-port"
        ) from None
    return port


async def _tell_health(services: Services, state: Any) -> None:
    """The health service says what /health does."""
    status = health_pb2.HealthCheckResponse
    while True:
        now = status.SERVING if services.is_ready else status.NOT_SERVING
        for name in ("", SERVICE):
            await state.set(name, now)
        await asyncio.sleep(HEALTH_SECONDS)
