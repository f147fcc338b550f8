"""A real server with a real engine, used by the official client: many requests at once, some cut off, nothing lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import openai
import psutil
import pytest
from served import LIMIT_S, Served, serving

pytestmark = pytest.mark.e2e
NUM_REQUESTS = 32


@pytest.fixture(scope="module", params=["reference", "sim"])
def server(
    request: pytest.FixtureRequest, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """On the reference and on the asynchronous static-shape device. 8 rows make the 32 requests queue."""
    log = tmp_path_factory.mktemp("log") / "server.log"
    flags = ("--platform", request.param, "--max-num-seqs", "8", "--num-blocks", "40", "--stall-seconds", "60")
    with serving(tiny_folder, log, *flags) as served:
        yield served


async def _one(client: openai.AsyncOpenAI, model: str, index: int, *, cut: bool) -> tuple[int, str, str | None]:
    """(index, text, finish reason); `cut` leaves the stream after its second piece."""
    length = 4 + (index * 7) % 24
    prompt = f"{index:03d} " + "abcdefgh"[: index % 8] * (1 + index % 5)
    if index % 2 and not cut:
        answer = await client.completions.create(model=model, prompt=prompt, max_tokens=length, temperature=0)
        return index, answer.choices[0].text, answer.choices[0].finish_reason
    stream = await client.completions.create(
        model=model, prompt=prompt, max_tokens=100 if cut else length, temperature=0, stream=True
    )
    pieces, reason, count = [], None, 0
    async for event in stream:
        for choice in event.choices:
            pieces.append(choice.text)
            reason = choice.finish_reason or reason
        count += 1
        if cut and count == 2:
            await stream.close()
            return index, "", None
    return index, "".join(pieces), reason


async def _storm(url: str, *, cut_every: int) -> dict[int, tuple[str, str | None]]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=LIMIT_S, max_retries=0) as client:
        model = (await client.models.list()).data[0].id
        calls = (
            _one(client, model, index, cut=cut_every > 0 and index % cut_every == 0) for index in range(NUM_REQUESTS)
        )
        return {index: (text, reason) for index, text, reason in await asyncio.gather(*calls)}


def test_many_requests_with_one_in_four_cut_off(server: Served) -> None:
    alone = asyncio.run(_storm(server.url, cut_every=0))
    assert all(reason in ("length", "stop") for _, reason in alone.values()), alone
    for _ in range(2):
        mixed = asyncio.run(_storm(server.url, cut_every=4))
        for index, answer in mixed.items():
            if index % 4:
                assert answer == alone[index], f"request {index} was disturbed by others that were cut off"
    server.settle()


def test_memory_stays_flat_over_storms(server: Served) -> None:
    asyncio.run(_storm(server.url, cut_every=4))
    server.settle()
    before = _resident(server)
    for _ in range(4):
        asyncio.run(_storm(server.url, cut_every=4))
    server.settle()
    assert _resident(server) < before * 1.10 + 8 * 2**20


def _resident(server: Served) -> int:
    """Bytes of the server and its children."""
    process = psutil.Process(server.process.pid)
    return sum(member.memory_info().rss for member in (process, *process.children(recursive=True)))
