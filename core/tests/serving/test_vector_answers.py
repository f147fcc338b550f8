"""Vectors as JSON: the right numbers, and the event loop goes on while millions of them are written."""

from __future__ import annotations

import asyncio
import base64
import json
import time

import numpy as np
import pytest

from tenon_core.serving.answers import Head
from tenon_core.serving.embeddings import vectors_response

pytestmark = pytest.mark.unit
HEAD = Head(id="x", object="list", model="m")
USAGE = {"prompt_tokens": 3}


@pytest.mark.parametrize("shape", [(4,), (3, 4), (0, 4)])
def test_the_numbers_and_their_places(shape: tuple[int, ...]) -> None:
    vectors = [np.random.default_rng(place).standard_normal(shape).astype(np.float32) for place in range(2)]
    found = json.loads(asyncio.run(vectors_response(HEAD, ("pooling", "data"), vectors, None, USAGE)).body)
    assert (found["id"], found["object"], found["model"], found["usage"]) == ("x", "list", "m", USAGE)
    assert [(one["object"], one["index"]) for one in found["data"]] == [("pooling", 0), ("pooling", 1)]
    for one, vector in zip(found["data"], vectors, strict=True):
        assert one["data"] == vector.tolist()
    packed = asyncio.run(vectors_response(HEAD, ("embedding", "embedding"), vectors, "base64", USAGE)).body
    for one, vector in zip(json.loads(packed)["data"], vectors, strict=True):
        assert np.frombuffer(base64.b64decode(one["embedding"]), "<f4").tolist() == vector.ravel().tolist()


@pytest.mark.parametrize("shape", [(1000, 1024), (2, 1000, 512)])
def test_the_loop_goes_on_meanwhile(shape: tuple[int, ...]) -> None:
    vectors = list(np.random.default_rng(1).standard_normal(shape).astype(np.float32))

    async def longest_stop() -> tuple[float, float]:
        writing = asyncio.ensure_future(vectors_response(HEAD, ("pooling", "data"), vectors, None, USAGE))
        begun = last = time.monotonic()
        longest = 0.0
        while not writing.done():
            await asyncio.sleep(0.001)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        return longest, last - begun

    longest, total = asyncio.run(longest_stop())
    assert longest < 0.5 * total, f"it stood still for {longest:.2f} of {total:.2f} s"
