"""`PoolingFace`: what `LLM` can do with a model that gives vectors, labels or scores, under the known names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tenon_core.sampling.pooling import CLASSIFY, EMBED, TOKEN_CLASSIFY, PoolingFacts, PoolingParams, task_of
from tenon_core.sampling.validate import ModelFacts
from tenon_platforms.errors import RequestError

from .generation import ActiveRequest, Generation
from .pairs import PoolingPrompt, cut_ids, encode_pairs, encode_text, tokens_to_keep
from .pooling_outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PooledRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from .prompts import PromptLike, as_prompts, text_or_ids
from .tokenizer import ClientTokenizer
from .vectors import cosine, finished

PoolingLike = PoolingParams | Sequence[PoolingParams] | None
Start = Callable[[], ActiveRequest]


class PoolingFace:
    """Mixed into `LLM`. The first four members are its own."""

    def _facts(self) -> ModelFacts:
        raise NotImplementedError

    def _tools(self) -> tuple[Generation, ClientTokenizer]:
        raise NotImplementedError

    def _run_all(self, starts: Sequence[Start], use_tqdm: bool) -> list[ActiveRequest]:
        raise NotImplementedError

    def embed(
        self, prompts: PromptLike | Sequence[PromptLike], *, pooling_params: PoolingLike = None, use_tqdm: bool = True
    ) -> list[EmbeddingRequestOutput]:
        """A vector of each prompt. Raises `RequestError` where the model has none to give."""
        done = self._pool(prompts, pooling_params, EMBED, use_tqdm)
        return [_output(one, EmbeddingOutput(embedding=data[0].tolist())) for one, data in done]

    def classify(
        self, prompts: PromptLike | Sequence[PromptLike], *, pooling_params: PoolingLike = None, use_tqdm: bool = True
    ) -> list[ClassificationRequestOutput]:
        """The labels' scores of each prompt, in the order of the model's configuration."""
        done = self._pool(prompts, pooling_params, CLASSIFY, use_tqdm)
        return [_output(one, ClassificationOutput(probs=data[0].tolist())) for one, data in done]

    def encode(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        pooling_params: PoolingLike = None,
        *,
        pooling_task: str | None = None,
        use_tqdm: bool = True,
    ) -> list[PoolingRequestOutput]:
        """What the pooling head gives: [width], or [tokens, width] for the tasks `token_embed`, `token_classify`."""
        done = self._pool(prompts, pooling_params, pooling_task, use_tqdm)
        return [_output(one, PoolingOutput(data=data if one.is_per_token else data[0])) for one, data in done]

    def reward(
        self, prompts: PromptLike | Sequence[PromptLike], *, pooling_params: PoolingLike = None, use_tqdm: bool = True
    ) -> list[PoolingRequestOutput]:
        """A reward model's scores: of every token, [tokens, labels], as they come unless asked otherwise."""
        done = self._pool(prompts, pooling_params or PoolingParams(use_activation=False), TOKEN_CLASSIFY, use_tqdm)
        return [_output(one, PoolingOutput(data=data)) for one, data in done]

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        *,
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool = True,
    ) -> list[ScoringRequestOutput]:
        """How well texts belong together, pair by pair; one text on the left is paired with each on the right.

        A model with one label judges the pair (a cross-encoder), one that embeds compares two vectors by their angle.
        """
        pairs = paired(data_1, data_2)
        facts, params = self._pooling_facts(), pooling_params or PoolingParams()
        if facts.is_scorer:
            generation, tokenizer = self._tools()
            keep = tokens_to_keep(params.truncate_prompt_tokens, self._facts())
            prompts = encode_pairs(tokenizer, pairs, self._facts(), lambda _: keep)
            done = self._run_all([_start(generation, one, params) for one in prompts], use_tqdm)
            return [
                _output(one, ScoringOutput(score=float(finished(_vectors(one), params, facts)[0, 0]))) for one in done
            ]
        check_scores(facts)
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        vectors = dict(zip(texts, self._pool(texts, params, EMBED, use_tqdm), strict=True))
        return [
            PooledRequestOutput(
                request_id=vectors[second][0].output.request_id,
                outputs=ScoringOutput(score=cosine(vectors[first][1][0], vectors[second][1][0])),
                prompt_token_ids=[
                    *vectors[first][0].output.prompt_token_ids,
                    *vectors[second][0].output.prompt_token_ids,
                ],
            )
            for first, second in pairs
        ]

    def _pooling_facts(self) -> PoolingFacts:
        facts = self._facts()
        if facts.pooling is None:
            raise RequestError(
                f"model {facts.model!r:.200} generates text: for vectors, make it with runner='pooling',"
                " convert='embed'",
                param="model",
            )
        return facts.pooling

    def _pool(
        self, prompts: Any, given: PoolingLike, task: str | None, use_tqdm: bool
    ) -> list[tuple[ActiveRequest, npt.NDArray[np.float32]]]:
        facts, many = self._pooling_facts(), as_prompts(prompts)
        params = as_pooling_params(given, len(many), task)
        for one in params:
            task_of(one, facts)
        generation, _ = self._tools()
        starts = [_start(generation, self._prompt(one, own), own) for one, own in zip(many, params, strict=True)]
        done = self._run_all(starts, use_tqdm)
        return [(one, finished(_vectors(one), own, facts)) for one, own in zip(done, params, strict=True)]

    def _prompt(self, given: PromptLike, params: PoolingParams) -> PoolingPrompt:
        text, ids = text_or_ids(given)
        keep = tokens_to_keep(params.truncate_prompt_tokens, self._facts())
        if ids is not None:
            return PoolingPrompt(ids=cut_ids(ids, keep))
        assert text is not None
        return encode_text(self._tools()[1], text, self._facts(), keep=keep)


def paired(first: str | Sequence[str], second: str | Sequence[str]) -> list[tuple[str, str]]:
    """(left, right) texts: one with each, or as many with as many. Raises `RequestError`."""
    left, right = (
        [one] if isinstance(one, str) or not isinstance(one, Iterable) else [*one] for one in (first, second)
    )
    if not left or not right or not all(isinstance(one, str) for one in (*left, *right)):
        raise RequestError("scoring takes texts: one or a list on each side", param="text_1")
    if len(left) == 1:
        left *= len(right)
    if len(left) != len(right):
        raise RequestError(
            f"{len(left)} texts on the left and {len(right)} on the right: expected one, or as many", param="text_1"
        )
    return list(zip(left, right, strict=True))


def check_scores(facts: PoolingFacts) -> None:
    """Raise `RequestError` where a model cannot compare two texts."""
    if EMBED not in facts.tasks:
        raise RequestError(
            f"this model cannot score pairs: it gives {facts.width} labels' scores; a model with one label can, or one"
            " that embeds",
            param="model",
        )


def as_pooling_params(given: PoolingLike, count: int, task: str | None) -> list[PoolingParams]:
    """Parameters of each prompt, with the task filled in. Raises `RequestError`."""
    given = PoolingParams() if given is None else given
    many = [given] * count if isinstance(given, PoolingParams) else list(given) if _is_many(given) else None
    if many is None or not all(isinstance(one, PoolingParams) for one in many):
        raise RequestError(
            f"pooling_params is {given!r:.80}: expected PoolingParams, or a list of them", param="pooling_params"
        )
    if len(many) != count:
        raise RequestError(f"{count} prompts and {len(many)} pooling parameters", param="pooling_params")
    return [with_task(one, task) for one in many]


def with_task(params: PoolingParams, task: str | None) -> PoolingParams:
    """The same with the task that a call stands for. Raises `RequestError` where another one is named."""
    if task is None or params.task == task:
        return params
    if params.task is not None:
        raise RequestError(f"task is {params.task!r}: this call is for {task!r}", param="task")
    import msgspec

    return msgspec.structs.replace(params, task=task)


def _is_many(given: Any) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, (str, bytes, dict))


def _start(generation: Generation, prompt: PoolingPrompt, params: PoolingParams) -> Start:
    return partial(generation.start_pooling, prompt.ids, params, segment_start=prompt.segment_start)


def _vectors(request: ActiveRequest) -> npt.NDArray[np.float32]:
    assert request.vectors is not None, "a pooling request ends with its vectors"
    return request.vectors


def _output(request: ActiveRequest, outputs: Any) -> PooledRequestOutput[Any]:
    return PooledRequestOutput(
        request_id=request.output.request_id,
        outputs=outputs,
        prompt_token_ids=request.output.prompt_token_ids,
        num_cached_tokens=request.output.num_cached_tokens,
    )
