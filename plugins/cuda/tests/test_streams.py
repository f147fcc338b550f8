"""Streams are lent to one owner at a time, and lent again."""

from __future__ import annotations

import pytest
import torch

from tenon_cuda.streams import Streams

pytestmark = pytest.mark.unit


def test_a_stream_has_one_owner_and_another_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: made.append(device) or object())
    streams, first, second = Streams(), torch.device("cuda", 0), torch.device("cuda", 1)
    one, two = streams.lend(first), streams.lend(first)
    assert one is not two
    other = streams.lend(second)
    streams.take_back(first, one, two)
    assert {streams.lend(first), streams.lend(first)} == {one, two}
    assert streams.lend(second) is not other
    assert made == [first, first, second, second]
