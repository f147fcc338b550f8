"""Log-probabilities in both of OpenAI's shapes, and in the shape of `prompt_logprobs`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tenon_core.client.detokenizer import ByteLevelDetokenizer, TokenBytes
from tenon_core.client.outputs import PositionLogprobs
from tenon_core.engine.messages import TokenLogprobs

ID = "token_id:{}"  # a token by its id, where `return_tokens_as_token_ids` asks for it: texts of several are the same


def chat_logprobs(
    positions: Iterable[TokenLogprobs], vocabulary: TokenBytes, count: int, *, as_ids: bool = False
) -> dict[str, Any]:
    """`choices[].logprobs` of the chat API. count: alternatives asked for."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = vocabulary.of(token)
        text = ID.format(token) if as_ids else data.decode("utf-8", "replace")
        return {"token": text, "logprob": finite(logprob), "bytes": list(data)}

    return {
        "content": [
            {
                **entry(one.token_id, one.logprob),
                "top_logprobs": [
                    entry(token, logprob)
                    for token, logprob in zip(one.top_ids[:count], one.top_logprobs[:count], strict=True)
                ],
            }
            for one in positions
        ]
    }


class CompletionLogprobs:
    """`choices[].logprobs` of the completions API; `text_offset` goes on from piece to piece.

    A token's offset is where the first character that it completes stands in the choice's text; a token that is no part
    of the text (a skipped special one) takes no place in it.
    """

    def __init__(
        self,
        vocabulary: TokenBytes,
        count: int,
        *,
        offset: int = 0,
        skip_special_tokens: bool = True,
        as_ids: bool = False,
    ) -> None:
        self._vocabulary, self._count, self._offset, self._as_ids = vocabulary, count, offset, as_ids
        skipped: frozenset[int] = vocabulary.special_ids if skip_special_tokens else frozenset()
        self._text = ByteLevelDetokenizer(table=vocabulary, skipped=skipped)

    def _name(self, token: int) -> str:
        return ID.format(token) if self._as_ids else self._vocabulary.text(token)

    def of(self, positions: Iterable[TokenLogprobs]) -> dict[str, Any]:
        """The next positions."""
        tokens, values, tops, offsets = [], [], [], []
        for one in positions:
            tops.append(self._top(one))
            tokens.append(self._name(one.token_id))
            values.append(finite(one.logprob))
            offsets.append(self._offset)
            self._offset += len(self._text.push(one.token_id))
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    def _top(self, one: TokenLogprobs) -> dict[str, float]:
        top = {
            self._name(token): finite(logprob)
            for token, logprob in zip(one.top_ids[: self._count], one.top_logprobs[: self._count], strict=True)
        }
        top.setdefault(self._name(one.token_id), finite(one.logprob))
        return top

    def echoed(self, text: str, ids: Sequence[int], positions: Sequence[PositionLogprobs | None]) -> dict[str, Any]:
        """The prompt's positions; the first token has no log-probability. text: the prompt's."""
        tokens: list[str] = []
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        for token, position in zip(ids, positions, strict=True):
            tokens.append(self._name(token))
            values.append(None if position is None else finite(position[token].logprob))
            tops.append(
                None
                if position is None
                else {self._name(other): finite(one.logprob) for other, one in position.items()}
            )
        self._offset = len(text)
        offsets = prompt_offsets(text, ids, self._vocabulary)
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


def prompt_offsets(text: str, ids: Sequence[int], vocabulary: TokenBytes) -> list[int]:
    """Where each token of a prompt begins in its text, which lacks the space or special tokens a tokenizer put in."""
    offsets, offset = [], 0
    detokenizer = ByteLevelDetokenizer(table=vocabulary, skipped=frozenset())
    for token in ids:
        offsets.append(offset)
        piece = detokenizer.push(token)
        if text.startswith(piece, offset):
            offset += len(piece)
        elif text.startswith(piece.removeprefix(" "), offset):
            offset += len(piece) - 1
        elif token not in vocabulary.special_ids:  # the tokenizer writes the text otherwise, in small letters say
            offset = min(offset + len(piece), len(text))
    return offsets


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two pieces of the completions API's shape as one."""
    return {name: first[name] + second[name] for name in first}


def prompt_positions(positions: Sequence[PositionLogprobs | None] | None) -> list[dict[str, Any] | None] | None:
    """`prompt_logprobs` as JSON: by token id."""
    if positions is None:
        return None
    return [
        None
        if position is None
        else {
            str(token): {"logprob": finite(one.logprob), "rank": one.rank, "decoded_token": one.decoded_token}
            for token, one in position.items()
        }
        for position in positions
    ]


def finite(logprob: float) -> float:
    """JSON has no infinity: a token that cannot be chosen gets a number below all others."""
    return max(logprob, -9999.0)
