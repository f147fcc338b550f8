"""POST /v1/embeddings, /pooling and /classify: what a model's pooling head gives of texts or token ids."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

import msgspec
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
        total = usage([one for one, _ in done])
        vectors = [data[0] for _, data in done]
        return await vectors_response(head, ("embedding", "embedding"), vectors, fields.encoding_format, total)

    return post_embeddings


def pooling(services: Services) -> Any:
    """The handler of /pooling: vectors or scores, of texts or of each token, by `task`."""

    async def post_pooling(request: Request) -> Response:
        call, fields = await read_call(services, request, PoolFields)
        params = fields.params(fields.task, fields.dimensions)
        done = await call.run(await call.encoded(fields, params), params)
        head = Head(id=f"pool-{label_of(request)}", object="list", model=call.model)
        total = usage([one for one, _ in done])
        vectors = [data if one.is_per_token else data[0] for one, data in done]
        return await vectors_response(head, ("pooling", "data"), vectors, fields.encoding_format, total)

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
        return json_response({**head.whole(), "data": data, "usage": usage([one for one, _ in done])})

    return post_classify


async def vectors_response(
    head: Head, names: tuple[str, str], vectors: Sequence[Vectors], encoding: str | None, total: dict[str, Any]
) -> Response:
    """A list of vectors as a response, written in a thread and row by row: millions of numbers take seconds, and
    whatever writes them in one go stops every other request.

    names: each entry's `object`, and its field with the vector. total: the counts of tokens.
    """
    kind, name = names

    def write() -> bytes:
        entries = (
            b'{"object":"%s","index":%d,"%s":%s}' % (kind.encode(), index, name.encode(), written(one, encoding))
            for index, one in enumerate(vectors)
        )
        start, end = msgspec.json.encode(head.whole())[:-1], msgspec.json.encode(total)
        return b'%s,"data":[%s],"usage":%s}' % (start, b",".join(entries), end)

    return Response(await asyncio.to_thread(write), media_type="application/json")


def written(data: Vectors, encoding: str | None) -> bytes:
    """Numbers as JSON, or their float32 bytes as base64. data: [width] or [tokens, width]."""
    if encoding == "base64":
        return b'"%s"' % base64.b64encode(data.astype("<f4").tobytes())
    if data.ndim == 1:
        return msgspec.json.encode(data.tolist())
    return b"[%s]" % b",".join(msgspec.json.encode(row.tolist()) for row in data)
