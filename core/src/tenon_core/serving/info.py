"""The routes that do not generate: models, health, metrics, version, tokenize and detokenize."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tenon_platforms.errors import RequestError

from .answer_types import Detokenized, Health, Model, ModelList, Readiness, Tokens, Version
from .answers import installed, json_response
from .body import read_object
from .chat import encoded
from .protocol import ChatFields, DetokenizeFields, TokenizeFields, parse
from .services import Services, unless_gone
from .siblings import gathered


def health(services: Services) -> Any:
    """GET /health: 200 while the engine's loop is alive, else 503 and why."""

    async def get_health(request: Request) -> Response:
        if services.is_ready:
            return json_response(Health(status="ok"))
        state = "shutting down" if services.is_draining else services.state()
        state = "starting" if state == "ready" else state
        return json_response(Health(status=state), status=503)

    return get_health


def ready(services: Services) -> Any:
    """GET /ready: the same for load balancers, with a reason in the error's shape."""

    async def get_ready(request: Request) -> Response:
        services.ready_generation()
        services.ready_tokenizer()
        return json_response(Readiness(status="ready", model=services.model_names[0]))

    return get_ready


def models(services: Services) -> Any:
    """GET /v1/models."""

    async def get_models(request: Request) -> Response:
        return json_response(ModelList(data=[listed(services, name) for name in services.model_names]))

    return get_models


def listed(services: Services, name: str) -> Model:
    """What is said of a name of the model."""
    longest = None if services.facts is None else services.facts.max_model_len
    return Model(id=name, created=services.created, root=services.model_names[0], max_model_len=longest)


def model(services: Services) -> Any:
    """GET /v1/models/NAME."""

    async def get_model(request: Request) -> Response:
        name = services.check_model(request.path_params["name"])
        return json_response(listed(services, name))

    return get_model


def metrics(services: Services, *, gathers: bool = True) -> Any:
    """GET /metrics, for Prometheus. gathers: with what the other API processes counted."""

    async def get_metrics(request: Request) -> Response:
        services.metrics.set_up(services.is_ready)
        services.metrics.set_asleep(services.asleep)
        body, kind = services.metrics.render()
        if gathers and services.siblings:
            body = await gathered(body, services.siblings)
        return Response(body, headers={"content-type": kind})

    return get_metrics


def version_of(services: Services) -> Any:
    """GET /version."""
    found = Version(version=installed())

    async def get_version(request: Request) -> Response:
        return json_response(found)

    return get_version


def tokenize(services: Services) -> Any:
    """POST /tokenize: a prompt's, or a conversation's, token ids."""

    async def post_tokenize(request: Request) -> Response:
        config = services.config
        body = await read_object(request, max_bytes=config.max_body_bytes, seconds=config.body_timeout)
        fields = parse(TokenizeFields, body)
        services.check_model(fields.model)
        tokenizer, conversation = services.ready_tokenizer()
        if (fields.prompt is None) == (fields.messages is None):
            raise RequestError("give either prompt or messages", param="prompt")
        if fields.prompt is not None:
            adds = fields.add_special_tokens is not False
            ids = await unless_gone(request, tokenizer.encode_async(fields.prompt, add_special_tokens=adds))
        else:
            assert fields.messages is not None
            names = ("messages", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")
            chat = ChatFields(**{name: getattr(fields, name) for name in names})
            _, ids = await unless_gone(request, encoded(chat, conversation, fields.tools))
        longest = None if services.facts is None else services.facts.max_model_len
        answer = Tokens(count=len(ids), max_model_len=longest, tokens=ids)
        if fields.return_token_strs and (vocabulary := services.vocabulary) is not None:
            answer.token_strs = await asyncio.to_thread(lambda: [vocabulary.text(token) for token in ids])
        return json_response(answer)

    return post_tokenize


def detokenize(services: Services) -> Any:
    """POST /detokenize: the text of token ids."""

    async def post_detokenize(request: Request) -> Response:
        config = services.config
        body = await read_object(request, max_bytes=config.max_body_bytes, seconds=config.body_timeout)
        fields = parse(DetokenizeFields, body)
        services.check_model(fields.model)
        tokenizer, _ = services.ready_tokenizer()
        limit = tokenizer.vocab_size if services.facts is None else services.facts.vocab_size
        outside = next((token for token in fields.tokens if token >= limit), None)
        if outside is not None:
            raise RequestError(f"tokens holds {outside}: token ids lie between 0 and {limit - 1}", param="tokens")
        text = await asyncio.to_thread(tokenizer.decode, fields.tokens, skip_special_tokens=False)
        return json_response(Detokenized(prompt=text))

    return post_detokenize
