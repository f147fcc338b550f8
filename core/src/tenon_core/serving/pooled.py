"""What the routes for vectors, labels and scores share: the model's facts, prompts as ids, finished vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from starlette.requests import Request

from tenon_core.client.generation import ActiveRequest, Generation
from tenon_core.client.pairs import PoolingPrompt, cut_ids, encode_text, tokens_to_keep
from tenon_core.client.tokenizer import ClientTokenizer
from tenon_core.client.vectors import finished
from tenon_core.observability.log import escaped
from tenon_core.sampling.pooling import PoolingFacts, PoolingParams, task_of
from tenon_core.sampling.validate import MAX_TOKEN_VECTORS, ModelFacts
from tenon_platforms.errors import RequestError

from .answers import MAX_LABEL, label_of
from .body import read_object
from .completions import is_many
from .field_names import names_of
from .pooling_fields import InputFields, PoolingFields
from .protocol import parse
from .services import Services, Work, unless_gone

F = TypeVar("F", bound=PoolingFields)
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledCall:
    """One call that was read: who answers it, with what."""

    request: Request
    services: Services
    fields: PoolingFields
    model: str
    generation: Generation
    facts: ModelFacts
    pooling: PoolingFacts
    tokenizer: ClientTokenizer

    def keep(self, params: PoolingParams) -> int | None:
        """Tokens to keep of a prompt, None: all. Raises `RequestError`."""
        return tokens_to_keep(params.truncate_prompt_tokens, self.facts)

    async def run(self, prompts: Sequence[PoolingPrompt], params: PoolingParams) -> list[tuple[ActiveRequest, Vectors]]:
        """All prompts to their vectors, or none. Raises what the engine answers instead."""
        task = task_of(params, self.pooling)
        check_total(prompts, task, self.pooling)
        fields = self.fields
        starts = [
            partial(
                self.generation.start_pooling,
                one.ids,
                params,
                segment_start=one.segment_start,
                request_id=escaped(fields.request_id or label_of(self.request), cap=MAX_LABEL),
                cache_salt=fields.cache_salt or "",
                priority=fields.priority or 0,
            )
            for one in prompts
        ]
        with names_of({"prompt": "input"} if isinstance(fields, InputFields) else {}):
            work = Work.start_all(self.generation, starts)
            try:
                await unless_gone(self.request, work.finish())
            finally:
                work.abort()
        found = []
        for one in work.requests:
            assert one.vectors is not None, "a pooling request ends with its vectors"
            found.append((one, finished(one.vectors, params, self.pooling)))
        return found

    async def encoded(self, fields: InputFields, params: PoolingParams) -> list[PoolingPrompt]:
        """The inputs as token ids. Raises `RequestError`."""
        many: Sequence[Any] = fields.input if is_many(fields.input) else [fields.input]
        check_count(len(many) if fields.input else 0, self.facts, "input")
        keep, adds = self.keep(params), fields.add_special_tokens is not False

        def encode() -> list[PoolingPrompt]:
            return [
                encode_text(self.tokenizer, one, self.facts, keep=keep, add_special_tokens=adds)
                if isinstance(one, str)
                else PoolingPrompt(ids=cut_ids(one, keep))
                for one in many
            ]

        with names_of({"prompt": "input"}):
            texts = [one for one in many if isinstance(one, str)]
            return await unless_gone(self.request, self.beside(encode, texts, is_cut=keep is not None))

    async def beside(self, encode: Callable[[], list[PoolingPrompt]], texts: Sequence[str], *, is_cut: bool) -> Any:
        """Encode beside the event loop. is_cut: texts may be longer than the context, which bounds the others."""
        return await self.tokenizer.beside(encode, num_unbounded=sum(map(len, texts)) if is_cut else 0)


async def read_call(services: Services, request: Request, kind: type[F]) -> tuple[PooledCall, F]:
    """A call's fields and what serves it. Raises 400 where the model generates text, 503 where it is not ready."""
    config = services.config
    body = await read_object(request, max_bytes=config.max_body_bytes, seconds=config.body_timeout)
    fields = parse(kind, body)
    model = services.check_model(fields.model)
    generation, facts = services.ready_generation()
    tokenizer, _ = services.ready_tokenizer()
    if facts.pooling is None:
        raise RequestError(
            f"model {model!r:.200} generates text: serve it with --runner pooling --convert embed for vectors",
            param="model",
        )
    call = PooledCall(
        request=request,
        services=services,
        fields=fields,
        model=model,
        generation=generation,
        facts=facts,
        pooling=facts.pooling,
        tokenizer=tokenizer,
    )
    return call, fields


def check_count(count: int, facts: ModelFacts, param: str) -> None:
    """Refuse no inputs and too many of them, before anything is encoded."""
    if count == 0:
        raise RequestError(f"{param} is empty: at least one is needed", param=param)
    if count > facts.max_prompt_batch:
        raise RequestError(f"{param} holds {count} texts: at most {facts.max_prompt_batch} are allowed", param=param)


def check_total(prompts: Sequence[PoolingPrompt], task: str, facts: PoolingFacts) -> None:
    """Refuse an answer whose vectors, one a token, would take more than one prompt's may."""
    tokens = sum(len(one.ids) for one in prompts)
    if task.startswith("token_") and tokens * facts.width * 4 > MAX_TOKEN_VECTORS:
        raise RequestError(
            f"the inputs have {tokens} tokens, whose vectors take more than {MAX_TOKEN_VECTORS} bytes: send fewer",
            param="input",
        )


def usage(requests: Sequence[ActiveRequest]) -> dict[str, Any]:
    """Counts of tokens, in OpenAI's shape."""
    tokens = sum(len(one.output.prompt_token_ids) for one in requests)
    cached = sum(one.output.num_cached_tokens for one in requests)
    found: dict[str, Any] = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
    if cached:
        found["prompt_tokens_details"] = {"cached_tokens": cached}
    return found
