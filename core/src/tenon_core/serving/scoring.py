"""POST /score and /rerank: how well texts belong together, judged by a cross-encoder or by the angle of two vectors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tenon_core.client.generation import ActiveRequest
from tenon_core.client.pairs import PoolingPrompt, encode_pairs, encode_text
from tenon_core.client.pooling_face import check_scores, paired, with_task
from tenon_core.client.vectors import cosine
from tenon_core.sampling.pooling import EMBED, PoolingParams
from tenon_platforms.errors import RequestError

from .answers import Head, json_response, label_of
from .pooled import PooledCall, check_count, read_call, usage
from .pooling_fields import RerankFields, ScoreFields
from .services import Services, unless_gone

Pairs = Sequence[tuple[str, str]]


def score(services: Services) -> Any:
    """The handler of /score: one text with many, or many with as many."""

    async def post_score(request: Request) -> Response:
        call, fields = await read_call(services, request, ScoreFields)
        left, right = fields.sides()
        for side, name in zip((left, right), fields.names, strict=True):
            check_count(1 if isinstance(side, str) else len(side), call.facts, name)
        scores, requests = await scored(call, paired(left, right), fields.params(None), fields.names)
        head = Head(id=f"score-{label_of(request)}", object="list", model=call.model)
        data = [{"index": index, "object": "score", "score": one} for index, one in enumerate(scores)]
        return json_response({**head.whole(), "data": data, "usage": usage(requests)})

    return post_score


def rerank(services: Services) -> Any:
    """The handler of /rerank: documents by their score with a query, the best first."""

    async def post_rerank(request: Request) -> Response:
        call, fields = await read_call(services, request, RerankFields)
        check_count(len(fields.documents), call.facts, "documents")
        texts = [one if isinstance(one, str) else one.text for one in fields.documents]
        pairs = [(fields.query, text) for text in texts]
        names = ("query", "documents")
        scores, requests = await scored(call, pairs, fields.params(None), names, fields.max_tokens_per_doc)
        order = sorted(range(len(texts)), key=lambda index: (-scores[index], index))
        results: list[dict[str, Any]] = []
        for index in order[: fields.top_n or None]:
            found: dict[str, Any] = {"index": index, "relevance_score": scores[index]}
            if fields.return_documents is not False:
                found["document"] = {"text": texts[index]}
            results.append(found)
        total = usage(requests)
        head = {"id": f"rerank-{label_of(request)}", "model": call.model}
        return json_response({**head, "usage": total, "results": results})

    return post_rerank


async def scored(
    call: PooledCall, pairs: Pairs, params: PoolingParams, names: tuple[str, str], per_document: int | None = None
) -> tuple[list[float], list[ActiveRequest]]:
    """Each pair's score, and the requests that were run for them. names: of the fields that the left and the right
    texts came in; per_document: tokens kept of each right text. Raises `RequestError`."""
    keep = call.keep(params)
    is_cut = keep is not None or per_document is not None
    if call.pooling.is_scorer:

        @cache
        def keeps(first: str) -> int | None:
            if per_document is None:
                return keep
            own = len(call.tokenizer.encode(first)) + per_document + 1  # and the pair's closing token
            return own if keep is None else min(keep, own)

        encode = partial(encode_pairs, call.tokenizer, pairs, call.facts, keeps)
        encoding = call.beside(encode, [second for _, second in pairs], is_cut=is_cut)
        done = await call.run(await unless_gone(call.request, encoding), params)
        return [float(data[0, 0]) for _, data in done], [one for one, _ in done]
    check_scores(call.pooling)
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    right = {second for _, second in pairs}

    def encode_texts() -> list[PoolingPrompt]:
        found = []
        for text in texts:
            most = keep
            if per_document is not None and text in right:
                most = per_document if keep is None else min(keep, per_document)
            found.append(encode_text(call.tokenizer, text, call.facts, keep=most))
            if not found[-1].ids:
                name = names[text in right]
                raise RequestError(f"{name} holds a text without tokens: {text!r:.80}", param=name)
        return found

    prompts = await unless_gone(call.request, call.beside(encode_texts, texts, is_cut=is_cut))
    done = await call.run(prompts, with_task(params, EMBED))
    vectors = {text: data[0] for text, (_, data) in zip(texts, done, strict=True)}
    return [cosine(vectors[first], vectors[second]) for first, second in pairs], [one for one, _ in done]
