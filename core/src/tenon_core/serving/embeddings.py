"""POST /v1/embeddings, /pooling and /classify: what a model's pooling head gives of texts or token ids."""

from __future__ import annotations

import base64
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tenon_core.sampling.pooling import CLASSIFY, EMBED

from .answers import Head, json_response, label_of
from .pooled import Vectors, read_call, usage
from .pooling_fields import EmbeddingFields, InputFields, PoolFields
from .services import Services


def embeddings(services: Services) -> Any:
    """The handler of /v1/embeddings: float or base64 (float32, little-endian), cut to `dimensions` if asked."""

    async def post_embeddings(request: Request) -> Response:
        call, fields = await read_call(services, request, EmbeddingFields)
        params = fields.params(EMBED, fields.dimensions)
        done = await call.run(await call.encoded(fields, params), params)
        head = Head(id=f"embd-{label_of(request)}", object="list", model=call.model)
        data = [
            {"object": "embedding", "index": index, "embedding": written(data[0], fields.encoding_format)}
            for index, (_, data) in enumerate(done)
        ]
        return json_response({**head.whole(), "data": data, "usage": usage([one for one, _ in done])}, request)

    return post_embeddings


def pooling(services: Services) -> Any:
    """The handler of /pooling: vectors or scores, of texts or of each token, by `task`."""

    async def post_pooling(request: Request) -> Response:
        call, fields = await read_call(services, request, PoolFields)
        params = fields.params(fields.task, fields.dimensions)
        done = await call.run(await call.encoded(fields, params), params)
        head = Head(id=f"pool-{label_of(request)}", object="list", model=call.model)
        data = [
            {
                "object": "pooling",
                "index": index,
                "data": written(data if one.is_per_token else data[0], fields.encoding_format),
            }
            for index, (one, data) in enumerate(done)
        ]
        return json_response({**head.whole(), "data": data, "usage": usage([one for one, _ in done])}, request)

    return post_pooling


def classify(services: Services) -> Any:
    """The handler of /classify: the best label and every label's score."""

    async def post_classify(request: Request) -> Response:
        call, fields = await read_call(services, request, InputFields)
        params = fields.params(CLASSIFY)
        done = await call.run(await call.encoded(fields, params), params)
        head = Head(id=f"classify-{label_of(request)}", object="list", model=call.model)
        labels = call.pooling.labels
        data = [
            {
                "index": index,
                "label": labels[int(scores[0].argmax())],
                "probs": scores[0].tolist(),
                "num_classes": len(labels),
            }
            for index, (_, scores) in enumerate(done)
        ]
        return json_response({**head.whole(), "data": data, "usage": usage([one for one, _ in done])}, request)

    return post_classify


def written(data: Vectors, encoding: str | None) -> Any:
    """Numbers as JSON, or their float32 bytes as base64."""
    if encoding == "base64":
        return base64.b64encode(data.astype("<f4").tobytes()).decode("ascii")
    return data.tolist()
