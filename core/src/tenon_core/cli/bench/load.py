"""The load generator: sends requests to an OpenAI server at a rate, streams the answers, keeps the times.

One coroutine a request, one shared connection pool. Times are the client's: to first token from sending, between
tokens from event to event. A failed request is counted with its reason and disturbs no other.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tenon_platforms.errors import ConfigError, DeviceError

from .workload import Ask

CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server. endpoint: `/v1/completions` or `/v1/chat/completions`, below base_url."""

    base_url: str
    endpoint: str
    model: str
    api_key: str | None = None
    ignore_eos: bool = True
    temperature: float = 0.0
    timeout_s: float = 600.0

    def body(self, ask: Ask) -> dict[str, Any]:
        """The request's JSON."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": ask.output_len,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.endpoint.endswith("chat/completions"):
            if not isinstance(ask.prompt, str):
                raise ConfigError(
                    f"{self.endpoint} takes text, the prompts are token ids", remedy="pass --random-text or a dataset"
                )
            body["messages"] = [{"role": "user", "content": ask.prompt}]
        else:
            body["prompt"] = ask.prompt
        return body


@dataclass(slots=True, kw_only=True)
class Answer:
    """One request's outcome. Times in seconds. gaps: between events with tokens. error: None where it went well."""

    started: float
    first: float | None = None
    ended: float = 0.0
    gaps: list[float] = field(default_factory=list)
    num_prompt: int = 0
    num_output: int = 0
    error: str | None = None

    @property
    def seconds_per_token(self) -> float | None:
        """Mean time a token after the first; None with fewer than two."""
        if self.first is None or self.num_output < 2:
            return None
        return (self.ended - self.started - self.first) / (self.num_output - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How requests are spread. rate: a second, inf: all at once. burstiness: 1 is Poisson, more is steadier.

    concurrency: most requests under way, 0: no limit. A request with a time of its own (a trace) keeps it.
    """

    rate: float
    burstiness: float = 1.0
    concurrency: int = 0
    seed: int = 0

    def times(self, asks: Sequence[Ask]) -> list[float]:
        """When each request is sent, seconds after the start."""
        generator = random.Random(self.seed)
        now, times = 0.0, []
        for ask in asks:
            times.append(now if ask.at is None else ask.at)
            if self.rate != float("inf"):
                now += generator.gammavariate(self.burstiness, 1 / (self.rate * self.burstiness))
        return times


async def first_model(base_url: str, api_key: str | None) -> str:
    """The first model the server lists. Raises `ConfigError` where no server answers."""
    async with httpx.AsyncClient(timeout=10, headers=_headers(api_key)) as client:
        try:
            answer = await client.get(f"{base_url}/v1/models")
            answer.raise_for_status()
            return str(answer.json()["data"][0]["id"])
        except httpx.HTTPStatusError as error:
            raise ConfigError(
                f"{base_url}/v1/models answers {error.response.status_code}", remedy="check --api-key and --base-url"
            ) from error
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(
                f"no OpenAI server answers at {base_url}: {type(error).__name__}: {error}",
                remedy="start one (tenon serve MODEL) or pass --base-url",
            ) from error


async def run_load(target: Target, asks: Sequence[Ask], pace: Pace) -> tuple[list[Answer], float]:
    """Send everything; returns the answers in order and the seconds it all took."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    gate = asyncio.Semaphore(pace.concurrency) if pace.concurrency else None
    async with httpx.AsyncClient(timeout=target.timeout_s, limits=limits, headers=_headers(target.api_key)) as client:
        start = time.perf_counter()

        async def one(ask: Ask, at: float) -> Answer:
            await asyncio.sleep(max(0.0, at - (time.perf_counter() - start)))
            if gate is None:
                return await send(client, target, ask)
            async with gate:
                return await send(client, target, ask)

        answers = await asyncio.gather(*(one(ask, at) for ask, at in zip(asks, pace.times(asks), strict=True)))
        return list(answers), time.perf_counter() - start


async def send(client: httpx.AsyncClient, target: Target, ask: Ask) -> Answer:
    """One streamed request."""
    answer = Answer(started=time.perf_counter())
    num_events, last = 0, answer.started
    try:
        async with client.stream("POST", target.base_url + target.endpoint, json=target.body(ask)) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode("utf-8", "replace")
                answer.error = f"HTTP {response.status_code}: {text[:300]}"
            else:
                async for event in _events(response):
                    if isinstance(event.get("error"), dict):
                        raise DeviceError(str(event["error"].get("message")))
                    now = time.perf_counter()
                    if usage := event.get("usage"):
                        answer.num_prompt = int(usage.get("prompt_tokens") or 0)
                        answer.num_output = int(usage.get("completion_tokens") or 0)
                    if _has_token(event):
                        if answer.first is None:
                            answer.first = now - answer.started
                        else:
                            answer.gaps.append(now - last)
                        num_events, last = num_events + 1, now
    except (httpx.HTTPError, DeviceError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.ended = max(last, answer.started) if answer.error is None and num_events else time.perf_counter()
    answer.num_output = answer.num_output or num_events
    if answer.error is None and answer.first is None:
        answer.error = "the stream ended without a token"
    return answer


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each server-sent event, up to `[DONE]`."""
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        event = json.loads(data)
        if isinstance(event, dict):
            yield event


def _has_token(event: dict[str, Any]) -> bool:
    """Whether an event carries output: text, or a piece of a message."""
    for choice in event.get("choices") or ():
        delta = choice.get("delta")
        if isinstance(delta, dict):
            if delta.get("content") or delta.get("reasoning_content"):
                return True
        elif choice.get("text"):
            return True
    return False


def _headers(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}
