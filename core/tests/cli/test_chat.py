"""`tenon chat`: one question from the command line, a conversation, and what ends either."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenon_core.cli.talk import Talk
from tenon_core.config import EngineConfig
from tenon_core.sampling.params import SamplingParams
from tenon_platforms.errors import RequestError

pytestmark = pytest.mark.e2e
ENGINE = ("--platform", "reference", "--num-blocks", "64")


@pytest.fixture
def talk(tiny_model: Path) -> Iterator[Talk]:
    config = EngineConfig.from_flat(model=str(tiny_model), platform="reference", num_blocks=64, max_num_seqs=4)
    with Talk.start(config, SamplingParams(temperature=0.0, max_tokens=8)) as started:
        yield started


def test_one_question(tenon: Callable[..., Any], tiny_model: Path) -> None:
    ran = tenon("chat", tiny_model, *ENGINE, "--prompt", "hello", "--max-tokens", 6, "--stats")
    assert ran.code == 0, ran.err
    assert ran.out.endswith("\n") and len(ran.out) > 1
    assert "<user>hello<assistant>" not in ran.out
    assert f"{len('<user>hello<assistant>')} tokens in, " in ran.err


def test_the_answer_is_the_llms(talk: Talk, tiny_model: Path) -> None:
    from tenon_core.llm import LLM

    said = "".join(talk.ask("hello"))
    with LLM(str(tiny_model), platform="reference", num_blocks=64, max_num_seqs=4) as llm:
        (answer,) = llm.chat([{"role": "user", "content": "hello"}], SamplingParams(temperature=0.0, max_tokens=8))
    assert said == answer.outputs[0].text


def test_a_conversation_remembers(talk: Talk) -> None:
    first = "".join(talk.ask("one"))
    "".join(talk.ask("two"))
    said = [message["content"] for message in talk.messages]
    assert [message["role"] for message in talk.messages] == ["user", "assistant"] * 2
    assert said[:3] == ["one", first, "two"]
    talk.reset(system="be brief")
    talk.reset()
    assert talk.messages == [{"role": "system", "content": "be brief"}]


def test_a_stopped_answer_frees_everything(talk: Talk) -> None:
    pieces = talk.ask("hello")
    next(pieces)
    pieces.close()
    assert talk.generation.num_active == 0
    talk.link.engine.check_integrity()
    assert "".join(talk.ask("again")) is not None
    talk.link.engine.check_integrity()


def test_a_question_that_is_too_long_changes_nothing(talk: Talk) -> None:
    before = list(talk.messages)
    with pytest.raises(RequestError):
        list(talk.ask("x" * 300))
    assert talk.messages == before


def test_a_conversation_on_standard_input(
    tenon: Callable[..., Any], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("hello\n\n" + "x" * 300 + "\n/what\n/reset\nhello\n/exit\nnever\n"))
    ran = tenon("chat", tiny_model, *ENGINE, "--max-tokens", 4)
    assert ran.code == 0
    assert "error: " in ran.err and "/reset begins anew" in ran.err
    answers = [part for part in ran.out.replace("> ", "\x00").split("\x00") if part.strip()]
    assert len(answers) == 2 and answers[0] == answers[1]  # the second after /reset


def test_no_chat_template(tenon: Callable[..., Any], tiny_model: Path, tmp_path: Path) -> None:
    for file in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / file).write_bytes((tiny_model / file).read_bytes())
    ran = tenon("chat", tmp_path, *ENGINE, "--prompt", "hello")
    assert ran.code == 2 and "has no chat template" in ran.err and "--chat-template" in ran.err
    (tmp_path / "t.jinja").write_text("{{ messages[0].content }}")
    ran = tenon(
        "chat", tmp_path, *ENGINE, "-p", "hello", "--max-tokens", 2, "--chat-template", tmp_path / "t.jinja"
    )  # fmt: skip
    assert ran.code == 0, ran.err


def test_bad_parameters(tenon: Callable[..., Any], tiny_model: Path) -> None:
    ran = tenon("chat", tiny_model, "--temperature", -1, "--prompt", "x")
    assert ran.code == 2 and "temperature is -1.0" in ran.err
