"""Killable workers that die in the middle of a request: replaced once, then told as the machine's trouble."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tenon_core.client.templates import ChatTemplate, TemplateLimits
from tenon_core.client.worker_process import WorkerLostError
from tenon_core.serving.errors import http_error
from tenon_platforms.errors import RequestError, TenonError

pytestmark = pytest.mark.unit
HELLO = [{"role": "user", "content": "hi"}]
SLOW = "{% for i in range(99999) %}{% for j in range(n) %}{% endfor %}{% endfor %}ok"


def killed(template: ChatTemplate, *, times: int, n: int) -> Any:
    """What a rendering comes to whose workers are killed as they begin."""
    outcome: list[Any] = []

    def render() -> None:
        try:
            outcome.append(template.render(HELLO, n=n))
        except TenonError as error:
            outcome.append(error)

    victims: list[Any] = []
    made = type(template._pool)._asked

    def watched(pool: Any, message: Any) -> Any:
        worker = pool._worker()
        pool._idle.put(worker)
        victims.append(worker)
        return made(pool, message)

    thread = threading.Thread(target=render)
    type(template._pool)._asked = watched  # type: ignore[method-assign]
    try:
        thread.start()
        for count in range(times):
            while len(victims) <= count:
                time.sleep(0.01)
            time.sleep(0.1)
            victims[count]._process.kill()
        thread.join(60)
    finally:
        type(template._pool)._asked = made  # type: ignore[method-assign]
    return outcome[0]


def test_a_worker_that_dies_is_replaced_once() -> None:
    template = ChatTemplate(source=SLOW, limits=TemplateLimits(seconds=30, num_workers=1))
    try:
        template.check()
        assert killed(template, times=1, n=100) == "ok"
        lost = killed(template, times=2, n=100)
        assert isinstance(lost, WorkerLostError), lost
        answer = http_error(lost)
        assert answer.status == 503 and answer.headers["Retry-After"] and "again" in answer.message
        assert template.render(HELLO, n=1) == "ok"
    finally:
        template.close()


def test_one_that_is_too_slow_is_still_the_requests_fault() -> None:
    template = ChatTemplate(source=SLOW, limits=TemplateLimits(seconds=0.5, num_workers=1))
    try:
        with pytest.raises(RequestError, match=r"0\.5 s"):
            template.render(HELLO, n=99999)
    finally:
        template.close()
