"""What `LLM` accepts and refuses from Python callers; threads that share one; processes that may not."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engine import FakeEngine
from fake_model import TEMPLATE, byte_tokenizer

from tenon_core import LLM, SamplingParams
from tenon_core.client.inline import InlineLink
from tenon_core.client.model_files import ModelFiles
from tenon_core.client.prompts import as_params, as_priorities, as_prompts, text_or_ids
from tenon_core.client.tokenizer import ClientTokenizer
from tenon_core.engine.messages import StepUpdate
from tenon_platforms.errors import ConfigError, DeviceError, RequestError

pytestmark = pytest.mark.unit


def over(engine: Any) -> LLM:
    files = ModelFiles(path=Path("fake"), tokenizer=ClientTokenizer(backend=byte_tokenizer()), chat_template=TEMPLATE)
    return LLM.over(InlineLink(engine=engine), files)


def test_prompts_of_every_form() -> None:
    assert as_prompts("a") == ["a"] and as_prompts([]) == []
    assert as_prompts(x for x in ("a", "b")) == ["a", "b"]
    assert as_prompts((1, 2)) == [[1, 2]] and as_prompts(np.array([1, 2])) == [[1, 2]]
    assert as_prompts(np.array([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    assert text_or_ids({"prompt": "a", "prompt_token_ids": np.array([1])}) == ("a", [1])


@pytest.mark.parametrize("prompts", [None, 5, b"abc", [None], [b"a"], {}, {"promt": "a"}, {"prompt": 5}, np.array(3)])
def test_what_is_no_prompt_is_refused_by_name(prompts: Any) -> None:
    llm = over(FakeEngine())
    with pytest.raises(RequestError, match="prompt"):
        llm.generate(prompts)


@pytest.mark.parametrize("params", ["x", {"max_tokens": 1}, [None], 3, []])
def test_what_are_no_parameters_is_refused_by_name(params: Any) -> None:
    with pytest.raises(RequestError, match="sampling"):
        as_params(params, 1)


@pytest.mark.parametrize("priority", [3, "a", ["a"], [True], [2**31], [1, 2], [None]])
def test_what_is_no_priority_is_refused_by_name(priority: Any) -> None:
    with pytest.raises(RequestError, match="priorit"):
        as_priorities(priority, 1)


def test_one_shot_iterables_serve_as_parameters() -> None:
    many = as_params((SamplingParams(max_tokens=k) for k in (1, 2)), 2)
    assert [one.max_tokens for one in many] == [1, 2]


def test_structured_outputs_of_another_type_are_refused() -> None:
    for wrong in ("x", {"json": "{}"}):
        with pytest.raises(RequestError, match="structured_outputs is"):
            SamplingParams(structured_outputs=wrong)  # type: ignore[arg-type]


def test_messages_and_tools_of_another_type_are_refused() -> None:
    llm = over(FakeEngine())
    with llm:
        for messages in (None, 5, "hello", {"role": "user", "content": "x"}):
            with pytest.raises(RequestError, match="messages"):
                llm.chat(messages)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="tools is 5"):
            llm.chat([{"role": "user", "content": "x"}], tools=5)  # type: ignore[arg-type]


class Jealous(FakeEngine):
    """Notes when two threads are in it at once."""

    def step(self) -> StepUpdate | None:
        assert INSIDE.acquire(blocking=False), "two threads step one engine"
        try:
            PAUSE.wait(0.0005)
            return super().step()
        finally:
            INSIDE.release()


INSIDE, PAUSE = threading.Lock(), threading.Event()


def test_threads_that_share_one_take_turns() -> None:
    llm = over(Jealous())
    texts: dict[int, str] = {}

    def ask(place: int) -> None:
        output = llm.generate(f"p{place}", SamplingParams(max_tokens=8))[0]
        texts[place] = output.outputs[0].text

    threads = [threading.Thread(target=ask, args=(place,), daemon=True) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert texts == {place: f"p{place}" * 4 for place in range(8)}


def test_another_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    llm = over(engine)
    for taken in (pickle.dumps, copy.deepcopy):
        with pytest.raises(ConfigError, match="pickled"):
            taken(llm)
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        with pytest.raises(ConfigError, match="was made in process"):
            llm.generate("x")
        with pytest.raises(ConfigError, match="was made in process"):
            llm.chat([{"role": "user", "content": "x"}])
        llm.shutdown()
        assert not engine.is_shut
    llm.shutdown()
    assert engine.is_shut


class Interrupted(FakeEngine):
    """Ctrl-C arrives in the midst of its third step, `num_times` times."""

    num_times = 1
    num_whole = 0

    def step(self) -> StepUpdate | None:
        if self.num_steps == 2:
            for _ in range(self.num_times):
                os.kill(os.getpid(), signal.SIGINT)
        update = super().step()
        self.num_whole += 1
        return update


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises, as in a terminal; a process that runs tests in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_waits_for_the_step_to_end() -> None:
    engine = Interrupted()
    llm = over(engine)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["ab", "cd"], SamplingParams(max_tokens=100))
    assert engine.num_whole == engine.num_steps == 3
    assert not engine.running and signal.getsignal(signal.SIGINT) is before
    assert llm.generate("ab", SamplingParams(max_tokens=4))[0].outputs[0].text == "abab"


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_interrupt_does_not_wait_and_tears_the_engine() -> None:
    engine = Interrupted()
    engine.num_times = 2
    llm = over(engine)
    with pytest.raises(KeyboardInterrupt):
        llm.generate("ab", SamplingParams(max_tokens=100))
    assert engine.num_whole == 2
    with pytest.raises(DeviceError, match="midst of a step"):
        llm.generate("ab")
    llm.shutdown()
    assert engine.is_shut
