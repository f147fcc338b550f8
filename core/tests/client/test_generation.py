"""`Generation` and `LLM` over the fake engine: ids, limits, n, stop strings, log-probabilities, ends and errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_engine import EOS, POISON, FakeEngine
from fake_model import TEMPLATE, byte_tokenizer, model_folder

from tenon_core import LLM, RequestOutput, SamplingParams
from tenon_core.client.generation import Generation
from tenon_core.client.inline import InlineLink
from tenon_core.client.model_files import ModelFiles
from tenon_core.client.pooling_face import paired
from tenon_core.client.tokenizer import ClientTokenizer
from tenon_core.engine.messages import split_key
from tenon_core.sampling.pooling import PoolingParams
from tenon_platforms.errors import CapacityError, ConfigError, DeviceError, RequestError

pytestmark = pytest.mark.unit


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def llm(engine: FakeEngine) -> LLM:
    return over(engine, TEMPLATE)


def over(engine: FakeEngine, template: str | None) -> LLM:
    files = ModelFiles(path=Path("fake"), tokenizer=ClientTokenizer(backend=byte_tokenizer()), chat_template=template)
    return LLM.over(InlineLink(engine=engine), files)  # type: ignore[arg-type]


def one(llm: LLM, prompt: str, **params: object) -> RequestOutput:
    return llm.generate(prompt, SamplingParams(**params))[0]  # type: ignore[arg-type]


def test_an_echo(llm: LLM) -> None:
    output = one(llm, "hello ", max_tokens=9)
    assert output.outputs[0].text == "hello hel"
    assert output.outputs[0].finish_reason == "length"
    assert output.outputs[0].stop_reason is None
    assert output.prompt == "hello " and output.prompt_token_ids == list(b"hello ")
    assert output.finished and output.metrics is not None and output.metrics.first_token_time is not None


def test_every_kind_of_prompt(llm: LLM) -> None:
    params = SamplingParams(max_tokens=2)
    assert [o.outputs[0].text for o in llm.generate(["ab", "cd"], params)] == ["ab", "cd"]
    assert [o.outputs[0].text for o in llm.generate([[97, 98], [99, 100]], params)] == ["ab", "cd"]
    assert llm.generate([97, 98], params)[0].prompt is None
    assert llm.generate({"prompt_token_ids": [97, 98]}, params)[0].outputs[0].text == "ab"
    assert llm.generate({"prompt": "ab"}, params)[0].outputs[0].text == "ab"
    assert llm.generate(["a", "b"], [SamplingParams(max_tokens=1), SamplingParams(max_tokens=3)])[1].outputs[
        0
    ].token_ids == [98, 98, 98]


def test_an_end_token_has_no_text(llm: LLM) -> None:
    output = llm.generate([97, EOS], SamplingParams(max_tokens=9))[0].outputs[0]
    assert (output.text, output.token_ids, output.finish_reason, output.stop_reason) == ("a", [97, EOS], "stop", None)
    shown = llm.generate([97, EOS], SamplingParams(max_tokens=9, skip_special_tokens=False))[0].outputs[0]
    assert shown.text == "a"
    on = llm.generate([97, EOS], SamplingParams(max_tokens=4, ignore_eos=True))[0].outputs[0]
    assert (on.text, on.finish_reason) == ("aa", "length")


def test_a_stop_id_is_told(llm: LLM) -> None:
    output = one(llm, "abc", stop_token_ids=[99], max_tokens=9).outputs[0]
    assert (output.text, output.stop_reason, output.finish_reason) == ("ab", 99, "stop")
    kept = one(llm, "abc", stop_token_ids=[99], max_tokens=9, include_stop_str_in_output=True).outputs[0]
    assert kept.text == "abc"


def test_a_stop_string_ends_one_sample_and_not_its_sibling(llm: LLM, engine: FakeEngine) -> None:
    output = one(llm, "xyz", n=2, stop=["zx"], max_tokens=6)
    first, second = output.outputs  # the second sample's text is the first's, every letter one further
    assert (first.text, first.finish_reason, first.stop_reason) == ("xy", "stop", "zx")
    assert (second.text, second.finish_reason, second.stop_reason) == ("yz{" * 2, "length", None)
    assert [split_key(key)[1] for key in engine.aborted_keys] == [0]
    assert not engine.running


def test_stop_strings_wait_for_min_tokens(llm: LLM) -> None:
    assert one(llm, "ab", stop=["b"], max_tokens=6).outputs[0].text == "a"
    late = one(llm, "ab", stop=["b"], min_tokens=3, max_tokens=6).outputs[0]
    assert (late.text, late.stop_reason) == ("aba", "b")


def test_a_held_back_beginning_is_shown_at_the_end(llm: LLM) -> None:
    assert one(llm, "abc", stop=["cX"], max_tokens=3).outputs[0].text == "abc"


def test_logprobs(llm: LLM) -> None:
    output = one(llm, "ab", max_tokens=2, logprobs=2, prompt_logprobs=1)
    sample = output.outputs[0]
    assert sample.cumulative_logprob == -1.0
    assert sample.logprobs is not None and list(sample.logprobs[0]) == [97, 98]
    assert sample.logprobs[0][97].decoded_token == "a" and sample.logprobs[0][97].rank == 1
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None and 98 in (output.prompt_logprobs[1] or {})
    assert one(llm, "ab", max_tokens=2).outputs[0].logprobs is None


def test_no_limit_means_the_whole_context(llm: LLM, engine: FakeEngine) -> None:
    assert len(one(llm, "ab", max_tokens=None).outputs[0].token_ids) == engine.facts.max_model_len - 2


@pytest.mark.parametrize("ids", [[-1], [270], [10**6], [], [2**40], ["a", 1], [1.5], [[1]], [True, "x"]])
def test_wrong_ids_are_refused(llm: LLM, ids: list[object]) -> None:
    with pytest.raises(RequestError):
        llm.generate({"prompt_token_ids": ids}, SamplingParams(max_tokens=1))


def test_a_refused_prompt_leaves_nothing_running(llm: LLM, engine: FakeEngine) -> None:
    with pytest.raises(RequestError):
        llm.generate(["fine", "x" * 5000], SamplingParams(max_tokens=100))
    assert not engine.running
    assert llm._generation.num_active == 0


def test_a_failed_step_is_the_requests_own_error(llm: LLM, engine: FakeEngine) -> None:
    with pytest.raises(DeviceError, match="step failed"):
        llm.generate([[97], [POISON]], SamplingParams(max_tokens=50))
    assert one(llm, "ab", max_tokens=1).outputs[0].text == "a"


def test_more_prompts_than_the_queue_holds(llm: LLM, engine: FakeEngine) -> None:
    engine.max_waiting = 3
    outputs = llm.generate([f"p{i}" for i in range(20)], SamplingParams(max_tokens=3))
    assert [o.outputs[0].text for o in outputs] == [(f"p{i}" * 3)[:3] for i in range(20)]
    engine.max_waiting = 0
    with pytest.raises(CapacityError):
        one(llm, "x")


def test_chat(llm: LLM) -> None:
    output = llm.chat([{"role": "user", "content": "hi<|im_end|>"}], SamplingParams(max_tokens=400, ignore_eos=True))[0]
    assert output.prompt == "<|im_start|>user\nhi<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    assert output.prompt_token_ids.count(EOS) == 1
    many = llm.chat([[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]])
    assert len(many) == 2
    assert llm.chat([{"role": "user", "content": [{"type": "text", "text": "a"}]}], chat_template_kwargs={"shout": 1})
    for messages in ([], [{"role": "user", "content": [{"type": "image_url"}]}], [{"content": "x"}], [{"role": 3}]):
        with pytest.raises(RequestError):
            llm.chat(messages)
    with pytest.raises(RequestError, match="chat_template_kwargs"):
        llm.chat([{"role": "user", "content": "a"}], chat_template_kwargs={"tools": 1})
    llm.shutdown()


def test_no_template_says_what_to_do(engine: FakeEngine) -> None:
    with pytest.raises(RequestError, match="--chat-template"):
        over(engine, None).chat([{"role": "user", "content": "a"}])


def test_shut_down(llm: LLM, engine: FakeEngine) -> None:
    with llm:
        assert llm.get_tokenizer().get_vocab_size() == 260
    assert engine.is_shut
    llm.shutdown()
    with pytest.raises(ConfigError, match="shut down"):
        llm.generate("x")


def test_seeds_follow_from_the_configuration(engine: FakeEngine) -> None:
    for _ in range(2):
        over(engine, None).generate(["a", "b"], SamplingParams(max_tokens=1))
    seeds = [request.params.seed for request in engine.submitted]
    assert seeds[:2] == seeds[2:] and seeds[0] != seeds[1]


def test_the_offline_face_imports_little(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    code = (
        "import sys\nfrom tenon_core import LLM, SamplingParams, EngineConfig, CompletionOutput\n"
        "from tenon_core.client.model_files import open_model_files\n"
        f"open_model_files(EngineConfig.from_flat(model={str(folder)!r}))\n"
        "bad = {m.partition('.')[0] for m in sys.modules}\n"
        "bad &= {'torch', 'zmq', 'fastapi', 'starlette', 'uvicorn', 'jinja2'}\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_no_request_is_taken_for_an_engine_that_is_gone(engine: FakeEngine) -> None:
    """As where a prompt was still being rendered when the engine died: nobody would ever answer it."""
    generation = Generation(link=InlineLink(engine=engine), vocabulary=None)  # type: ignore[arg-type]
    running = generation.start([97], SamplingParams(max_tokens=4))
    generation.fail_all(DeviceError("the engine is gone"))
    assert running.is_done and isinstance(running.error, DeviceError)
    for _ in range(2):
        with pytest.raises(DeviceError, match="gone"):
            generation.start([97], SamplingParams(max_tokens=4))
        with pytest.raises(DeviceError, match="gone"):
            generation.start_pooling([97], PoolingParams())
    assert generation.num_active == 0


@pytest.mark.parametrize("wrong", [None, 5, {"beam_width": 2}, SamplingParams()])
def test_a_beam_search_wants_its_parameters(llm: LLM, wrong: Any) -> None:
    with pytest.raises(RequestError, match="BeamSearchParams"):
        llm.beam_search("a", wrong)


@pytest.mark.parametrize("wrong", [None, 5, [], "", [5], [None], [["a"]], b"a", {"a": 1}])
def test_scores_are_of_texts(wrong: Any) -> None:
    if wrong not in ("", {"a": 1}):  # an empty text is one, and so are a map's keys
        for pair in ((wrong, "a"), ("a", wrong)):
            with pytest.raises(RequestError, match="scoring takes texts"):
                paired(*pair)
    assert paired("a", ["b", "c"]) == [("a", "b"), ("a", "c")]
