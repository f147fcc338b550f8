"""What one pooling request wants: `PoolingParams`, and the facts of the model that it is checked against.

The engine gives raw vectors; cutting, normalizing and turning scores into probabilities is done where the answer is
made (`client/vectors.py`), because requests of one batch may want it differently.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tenon_platforms.errors import RequestError

EMBED, CLASSIFY, TOKEN_EMBED, TOKEN_CLASSIFY = "embed", "classify", "token_embed", "token_classify"
TASKS = (EMBED, CLASSIFY, TOKEN_EMBED, TOKEN_CLASSIFY)


class PoolingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a pooling model gives. kind: "pool" (vectors) or "classify" (a score a label). width: numbers of one result.

    pooling: as in `Head`. normalize, activation: what is done unless a request says otherwise. labels: names in order.
    dimensions: the only lengths a vector may be cut to, () for any. segments: whether pairs of texts are told apart.
    """

    kind: str
    width: int
    pooling: str
    normalize: bool = True
    activation: str = "identity"
    labels: tuple[str, ...] = ()
    dimensions: tuple[int, ...] = ()
    segments: bool = False

    @property
    def tasks(self) -> tuple[str, ...]:
        """What may be asked of it, the default first."""
        if self.kind == "classify":
            return (TOKEN_CLASSIFY,) if self.pooling == "all" else (CLASSIFY, TOKEN_CLASSIFY)
        return (TOKEN_EMBED,) if self.pooling == "all" else (EMBED, TOKEN_EMBED)

    @property
    def is_scorer(self) -> bool:
        """Whether it judges a pair of texts by one number."""
        return self.kind == "classify" and self.width == 1 and self.pooling != "all"


class Pooling(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's part of a pooling request. per_token: a vector of each token, not one of all.

    segment_start: where the second text of a pair begins; 0: there is one text.
    """

    per_token: bool = False
    segment_start: int = 0


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of one pooling request; raises `RequestError` naming the field when a value is out of range.

    task: one of `TASKS`, None: what the model is made for. dimensions: length that vectors are cut to (matryoshka).
    normalize: vectors to length 1. use_activation: scores through sigmoid or softmax. None: as the model does.
    truncate_prompt_tokens: keep so many tokens of a longer prompt, -1: what the context holds; None: refuse it.
    """

    task: str | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.task is not None and self.task not in TASKS:
            raise RequestError(f"task is {self.task!r:.80}: expected one of {', '.join(TASKS)}", param="task")
        for name, least in (("dimensions", 1), ("truncate_prompt_tokens", -1)):
            value: Any = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise RequestError(f"{name} is {value!r:.80}: expected an integer", param=name)
            if not least <= value < 2**31 or value == 0:
                raise RequestError(f"{name} is {value!r:.80}: it must be at least 1", param=name)
        for name in ("normalize", "use_activation"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise RequestError(f"{name} is {value!r:.80}: expected true or false", param=name)


def task_of(params: PoolingParams, facts: PoolingFacts) -> str:
    """The task that is done. Raises `RequestError` where the model cannot, or a length is asked that it has not."""
    task = params.task or facts.tasks[0]
    if task not in facts.tasks:
        raise RequestError(f"task is {task!r}: this model does {' or '.join(facts.tasks)}", param="task")
    if params.dimensions is not None:
        if facts.kind != "pool":
            raise RequestError("dimensions is for embeddings: this model gives labels' scores", param="dimensions")
        if params.dimensions > facts.width:
            raise RequestError(
                f"dimensions is {params.dimensions}: this model's vectors have {facts.width}", param="dimensions"
            )
        if facts.dimensions and params.dimensions not in facts.dimensions:
            raise RequestError(
                f"dimensions is {params.dimensions}: this model was trained for"
                f" {', '.join(map(str, facts.dimensions))}",
                param="dimensions",
            )
    return task
