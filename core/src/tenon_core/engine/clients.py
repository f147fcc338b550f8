"""Several clients of one engine: whose request an id is, and each client's share of an update.

A client's number stands above its requests' own: id = client << 40 | count, and so in every key. With one client, which
is number 0, nothing is looked at.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .messages import SAMPLE_BITS, StepUpdate

CLIENT_BITS = 40
MAX_CLIENT = 126  # keys are signed 64-bit numbers
_KEY_SHIFT = CLIENT_BITS + SAMPLE_BITS


def first_id(client: int) -> int:
    """The id of a client's first request."""
    return (client << CLIENT_BITS) + 1


def client_of(request_id: int) -> int:
    """Whose request it is."""
    return request_id >> CLIENT_BITS


def shares(update: StepUpdate) -> dict[int, StepUpdate]:
    """client -> its part of an update, statistics included. Work: numpy over the tokens, Python over the rest."""
    keys, tokens = np.frombuffer(update.keys, dtype="<i8"), np.frombuffer(update.tokens, dtype="<i4")
    owners = keys >> _KEY_SHIFT
    found: set[int] = set(np.unique(owners).tolist())
    found |= {one.key >> _KEY_SHIFT for one in update.finished}
    found |= {one.key >> _KEY_SHIFT for one in update.prompts}
    found |= {one.key >> _KEY_SHIFT for one in update.pooled}
    if len(found) == 1:
        return {found.pop(): update}
    return {client: _share(update, client, keys, tokens, owners == client) for client in sorted(found)}


def _share(
    update: StepUpdate,
    client: int,
    keys: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int32],
    mine: npt.NDArray[np.bool_],
) -> StepUpdate:
    places = dict(zip(np.flatnonzero(mine).tolist(), range(int(mine.sum())), strict=True)) if update.logprobs else {}
    return StepUpdate(
        step=update.step,
        keys=keys[mine].tobytes(),
        tokens=tokens[mine].tobytes(),
        logprobs=tuple((places[place], one) for place, one in update.logprobs if place in places),
        finished=tuple(one for one in update.finished if one.key >> _KEY_SHIFT == client),
        prompts=tuple(one for one in update.prompts if one.key >> _KEY_SHIFT == client),
        pooled=tuple(one for one in update.pooled if one.key >> _KEY_SHIFT == client),
        stats=update.stats,
    )
