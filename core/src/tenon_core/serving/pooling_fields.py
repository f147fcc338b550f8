"""The fields of requests for vectors, labels and scores: strict, closed to unknown names, bounded."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tenon_core.sampling.pooling import PoolingParams
from tenon_platforms.errors import RequestError

from .closed import Fields, entries
from .protocol import Prompt

Texts = str | Annotated[list[str], entries()]


class PoolingFields(Fields):
    """What all of them share. Names are OpenAI's, then the further ones that this field's servers agree on."""

    model: str | None = Field(None, max_length=1024)
    user: str | None = Field(None, max_length=1024)
    truncate_prompt_tokens: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    cache_salt: str | None = Field(None, min_length=1, max_length=256)
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    request_id: str | None = Field(None, max_length=256)

    def params(self, task: str | None, dimensions: int | None = None) -> PoolingParams:
        """The engine's parameters. Raises `RequestError`."""
        return PoolingParams(
            task=task,
            dimensions=dimensions,
            normalize=self.normalize,
            use_activation=self.use_activation,
            truncate_prompt_tokens=self.truncate_prompt_tokens,
        )


class InputFields(PoolingFields):
    """Texts or token ids, one or several."""

    input: Prompt
    add_special_tokens: bool | None = None


class EmbeddingFields(InputFields):
    """POST /v1/embeddings."""

    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None


class PoolFields(InputFields):
    """POST /pooling."""

    task: str | None = Field(None, max_length=64)
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None


class ScoreFields(PoolingFields):
    """POST /score: pairs of texts, under either pair of names."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None

    def sides(self) -> tuple[Texts, Texts]:
        """(left, right). Raises `RequestError`."""
        named = (self.text_1, self.text_2, self.queries, self.documents)
        if self.text_1 is not None and self.text_2 is not None and named[2:] == (None, None):
            return self.text_1, self.text_2
        if self.queries is not None and self.documents is not None and named[:2] == (None, None):
            return self.queries, self.documents
        raise RequestError("give text_1 and text_2, or queries and documents", param="text_1")

    @property
    def names(self) -> tuple[str, str]:
        """Of the sides."""
        return ("text_1", "text_2") if self.text_1 is not None else ("queries", "documents")


class TextDocument(Fields):
    """A document as a map."""

    text: str


class RerankFields(PoolingFields):
    """POST /rerank, as Jina's and Cohere's clients send it."""

    query: str
    documents: Annotated[list[str | TextDocument], entries(least=1)]
    top_n: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int, Field(ge=1, lt=2**31)] | None = None
