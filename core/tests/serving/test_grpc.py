"""The gRPC face, by a generated client: answers, streams, keys, refusals, cancels, deadlines, health, reflection."""

from __future__ import annotations

import filecmp
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from fake_model import model_folder
from grpc_health.v1 import health_pb2, health_pb2_grpc
from running_server import KEY, RunningServer, free_port, start_server

import tenon_core.serving.rpc
from tenon_core.serving.config import ServerConfig
from tenon_core.serving.rpc import inference_pb2 as pb
from tenon_core.serving.rpc import inference_pb2_grpc as stubs
from tenon_platforms.errors import ConfigError

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[3]
MINE = (("authorization", f"Bearer {KEY}"),)
TEMPLATE = '{# <tool_call> {"name": and <think> </think> #}{{ messages[-1].content }}<|im_end|>'
CALL = '<tool_call>\n{"name": "now", "arguments": {"zone": "UTC"}}\n</tool_call>'


@pytest.fixture(scope="module")
def rpc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, str]]:
    path = tmp_path_factory.mktemp("grpc")
    port = free_port()
    running = start_server(
        model_folder(path, template=TEMPLATE), path / "log", grpc_port=port, max_body_bytes=200_000,
        environment={"FAKE_STEP_SECONDS": "0.004"},
    )  # fmt: skip
    try:
        running.wait_healthy()
        yield running, f"127.0.0.1:{port}"
    finally:
        code = running.stop()
    log = running.log.read_text()
    assert code == 0 and "Traceback" not in log and KEY not in log, log[-4000:]


@pytest.fixture
def stub(rpc: tuple[RunningServer, str]) -> Iterator[Any]:
    """A client; after every case a known call has its known answer."""
    with grpc.insecure_channel(rpc[1]) as channel:
        made = stubs.InferenceStub(channel)
        yield made
        answer = made.Generate(generate("abc", max_tokens=5), metadata=MINE, timeout=20)
        assert answer.choices[0].text == "abcab"


def generate(text: str, **sampling: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(text=text, sampling=pb.Sampling(**sampling))


def said(text: str, **fields: Any) -> pb.ChatRequest:
    return pb.ChatRequest(messages=[pb.Message(role="user", content=text)], **fields)


def running_requests(running: RunningServer) -> float:
    with running.client() as client:
        text = client.get("/metrics").text
    return float(next(one for one in text.splitlines() if one.startswith("tenon:num_requests_running")).split()[-1])


def until_quiet(running: RunningServer) -> None:
    deadline = time.monotonic() + 20
    while running_requests(running) > 0:
        assert time.monotonic() < deadline, "blocks are still held"
        time.sleep(0.1)


def test_a_whole_answer(stub: Any) -> None:
    answer = stub.Generate(generate("hello", max_tokens=7, n=2, temperature=0.0), metadata=MINE)
    assert [one.index for one in answer.choices] == [0, 1] and answer.choices[0].text == "hellohe"
    assert answer.choices[0].finish_reason == "length" and list(answer.choices[0].token_ids) == list(b"hellohe")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 14) and answer.model == "fake"
    ids = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=b"xyz"), sampling=pb.Sampling(max_tokens=3), logprobs=1, echo=True
    )
    found = stub.Generate(ids, metadata=MINE).choices[0]
    assert found.text == "xyzxyz" and len(found.logprobs.tokens) == 6 and found.logprobs.logprobs[-1] == -0.5
    assert math.isnan(found.logprobs.logprobs[0])


def test_a_stream_says_the_same(stub: Any) -> None:
    request = generate("stream me", max_tokens=12, stop=["zz"])
    chunks = list(stub.GenerateStream(request, metadata=MINE))
    assert len(chunks) > 2 and len({one.id for one in chunks}) == 1
    assert "".join(one.text for chunk in chunks for one in chunk.choices) == "stream mestr"
    assert chunks[-1].usage.completion_tokens == 12
    assert stub.Generate(request, metadata=MINE).choices[0].text == "stream mestr"


def test_bad_words_are_kept_out_of_texts_and_chats(stub: Any) -> None:
    assert stub.Generate(generate("abcabc", max_tokens=6, bad_words=["bc"]), metadata=MINE).choices[0].text == "ab!ab!"
    chunks = stub.GenerateStream(generate("abcabc", max_tokens=6, bad_words=["c", "xyz"]), metadata=MINE)
    assert "".join(one.text for chunk in chunks for one in chunk.choices) == "ab!ab!"
    request = said("hi hi", sampling=pb.Sampling(bad_words=["hi"], max_tokens=5))
    assert stub.Chat(request, metadata=MINE).choices[0].message.content == "h! h!"


def test_chat_with_reasoning_and_a_call(stub: Any) -> None:
    text = f"<think>\nhm\n</think>\n\nI look.\n{CALL}"
    request = said(text, tools=[pb.Tool(name="now", parameters='{"type": "object"}')])
    message = stub.Chat(request, metadata=MINE).choices[0].message
    assert (message.role, message.reasoning.strip()) == ("assistant", "hm") and message.content.strip() == "I look."
    assert message.tool_calls[0].name == "now" and json.loads(message.tool_calls[0].arguments) == {"zone": "UTC"}
    parts = [one for chunk in stub.ChatStream(request, metadata=MINE) for one in chunk.choices]
    assert "".join(one.message.content for one in parts) == message.content
    assert "".join(one.message.reasoning for one in parts).strip() == "hm"
    calls = [call for one in parts for call in one.message.tool_calls]
    assert "".join(one.name for one in calls) == "now"
    assert json.loads("".join(one.arguments for one in calls)) == {"zone": "UTC"}
    assert parts[-1].finish_reason == "tool_calls"


def test_structured_output_is_refused_as_over_http(stub: Any) -> None:
    bad = pb.Sampling(structured_output=pb.StructuredOutput(regex="(unclosed"))
    assert refused(stub, said("x", sampling=bad)) == grpc.StatusCode.INVALID_ARGUMENT
    nothing = pb.Sampling(structured_output=pb.StructuredOutput())
    for request in (said("x", sampling=nothing), pb.GenerateRequest(text="x", sampling=nothing)):
        assert refused(stub, request) == grpc.StatusCode.INVALID_ARGUMENT


def test_the_tokenizer_and_the_models(stub: Any) -> None:
    ids = stub.Tokenize(pb.TokenizeRequest(text="abc", add_special_tokens=False), metadata=MINE)
    assert list(ids.token_ids) == [97, 98, 99] and ids.max_model_len == 4096
    assert stub.Detokenize(pb.DetokenizeRequest(token_ids=[97, 98]), metadata=MINE).text == "ab"
    assert [one.id for one in stub.ListModels(pb.ListModelsRequest(), metadata=MINE).models] == ["fake"]


def refused(stub: Any, request: Any, metadata: Any = MINE) -> grpc.StatusCode:
    """The code that a request gets, the same whole and streamed."""
    kind = "Chat" if isinstance(request, pb.ChatRequest) else "Generate"
    codes = set()
    for call in (getattr(stub, kind), lambda *a, **k: list(getattr(stub, f"{kind}Stream")(*a, **k))):
        with pytest.raises(grpc.RpcError) as caught:
            call(request, metadata=metadata, timeout=20)
        codes.add(caught.value.code())
        assert "Traceback" not in caught.value.details() and ".py" not in caught.value.details()
    (code,) = codes
    return code


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 2**63 - 1), ("n", 0), ("n", 10**9), ("temperature", -1.0),
        ("temperature", math.nan), ("temperature", math.inf), ("top_p", 1e308), ("top_k", -(2**63)), ("min_p", 2.0),
        ("stop_token_ids", [-1]), ("stop_token_ids", [270]), ("allowed_token_ids", [10**6]), ("stop", ["x" * 2000]),
        ("stop", ["x"] * 1000), ("logit_bias", {-1: 1.0}), ("logit_bias", {5: math.nan}), ("logit_bias", {270: 1.0}),
        ("repetition_penalty", 0.0), ("presence_penalty", 9.0), ("min_tokens", 10**9), ("bad_words", [""]),
        ("bad_words", ["x"] * 129), ("bad_words", ["x" * 257]),
    ],
)  # fmt: skip
def test_edges_are_refused(stub: Any, field: str, value: Any) -> None:
    assert refused(stub, generate("x", **{field: value})) == grpc.StatusCode.INVALID_ARGUMENT


def test_other_refusals(stub: Any) -> None:
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    assert refused(stub, pb.GenerateRequest()) == invalid
    assert refused(stub, pb.GenerateRequest(token_ids=pb.TokenIds(ids=[270]))) == invalid
    assert refused(stub, pb.GenerateRequest(token_ids=pb.TokenIds())) == invalid
    assert refused(stub, pb.GenerateRequest(text="x", cache_salt="y" * 300)) == invalid
    assert refused(stub, pb.GenerateRequest(text="x", model="other")) == grpc.StatusCode.NOT_FOUND
    assert refused(stub, pb.ChatRequest()) == invalid
    assert refused(stub, said("x", chat_template_kwargs="{")) == invalid
    assert refused(stub, said("x", chat_template_kwargs='{"messages": []}')) == invalid
    assert refused(stub, said("x", tools=[pb.Tool(name="a", parameters="[" * 10_000)])) == invalid
    assert refused(stub, said("x", tool_choice="required")) == invalid
    assert refused(stub, generate("x" * 300_000)) == grpc.StatusCode.RESOURCE_EXHAUSTED
    poison = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1]), sampling=pb.Sampling(max_tokens=3))
    assert refused(stub, poison) == grpc.StatusCode.INTERNAL


WRONG: tuple[Any, ...] = (
    (), (("authorization", "Bearer wrong"),), (("x-api-key", KEY[:-1]),), (*MINE, *MINE),
    (*MINE, ("x-api-key", "wrong")),
    (("authorization", f"Basic {KEY}"),), (("authorization-bin", KEY.encode()),),
)  # fmt: skip


@pytest.mark.parametrize("metadata", WRONG, ids=str)
def test_every_method_wants_a_key(rpc: tuple[RunningServer, str], stub: Any, metadata: Any) -> None:
    """T01: the methods are those of the running server's descriptors, and some that do not exist."""
    from grpc_reflection.v1alpha import reflection_pb2

    methods = [f"/tenon.v1.Inference/{one.name}" for one in pb.DESCRIPTOR.services_by_name["Inference"].methods]
    assert len(methods) == 7
    with grpc.insecure_channel(rpc[1]) as channel:
        for method in (*methods, "/tenon.v1.Inference/None", "/x/y", "/tenon.v1.Inference"):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(method)(b"", metadata=metadata, timeout=20)
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED, method
        ask = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
        with pytest.raises(grpc.RpcError) as caught:
            list(ask(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), metadata=metadata, timeout=20))
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_health_and_reflection(rpc: tuple[RunningServer, str], stub: Any) -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    with grpc.insecure_channel(rpc[1]) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "tenon.v1.Inference"):
            found = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=20)
            assert found.status == health_pb2.HealthCheckResponse.SERVING
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = reflect.ServerReflectionInfo(iter([request]), metadata=MINE, timeout=20)
        assert "tenon.v1.Inference" in [one.name for one in answer.list_services_response.service]


def test_a_cancelled_stream_frees_what_it_held(rpc: tuple[RunningServer, str], stub: Any) -> None:
    calls = [stub.GenerateStream(generate("long", max_tokens=4000, ignore_eos=True), metadata=MINE) for _ in range(20)]
    for call in calls:
        next(call)
    assert running_requests(rpc[0]) > 0
    for call in calls:
        call.cancel()
    until_quiet(rpc[0])


def test_a_deadline_frees_what_it_held(rpc: tuple[RunningServer, str], stub: Any) -> None:
    request = generate("long", max_tokens=4000, ignore_eos=True)
    for call in (stub.Generate, lambda *a, **k: list(stub.GenerateStream(*a, **k))):
        with pytest.raises(grpc.RpcError) as caught:
            call(request, metadata=MINE, timeout=0.5)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    until_quiet(rpc[0])


def test_compressed_messages_are_not_taken(stub: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.Generate(generate("x" * 5000), metadata=MINE, compression=grpc.Compression.Gzip, timeout=20)
    assert caught.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x0a\x80\x80\x80\x01", b"\x0a\x02\xc3\x28", b"\x23" * 300])
@pytest.mark.parametrize(
    "method", ["tenon.v1.Inference/Generate", "tenon.v1.Inference/ChatStream", "grpc.health.v1.Health/Check",
               "grpc.health.v1.Health/Watch"],
)  # fmt: skip
def test_bytes_that_are_no_message(rpc: tuple[RunningServer, str], stub: Any, method: str, data: bytes) -> None:
    """Answered as the client's mistake, and without a traceback in the log (see `rpc`)."""
    with grpc.insecure_channel(rpc[1]) as channel, pytest.raises(grpc.RpcError) as caught:
        metadata = () if "Health" in method else MINE
        list(channel.unary_stream(f"/{method}")(data, metadata=metadata, timeout=20))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "are no message" in caught.value.details()


def test_ids_of_requests_are_in_the_log(rpc: tuple[RunningServer, str], stub: Any) -> None:
    stub.Generate(generate("x", max_tokens=1), metadata=(*MINE, ("x-request-id", "from-grpc")))
    assert "from-grpc" in rpc[0].log.read_text()


def slow_server(tmp_path: Path, grpc_port: int, drain_seconds: int) -> RunningServer:
    """One whose streams are open for a while."""
    return start_server(
        model_folder(tmp_path, template=TEMPLATE), tmp_path / "log", grpc_port=grpc_port, drain_seconds=drain_seconds,
        environment={"FAKE_STEP_SECONDS": "0.02"},
    )  # fmt: skip


def test_a_start_before_the_engine_and_a_drain(tmp_path: Path) -> None:
    port = free_port()
    running = slow_server(tmp_path, port, drain_seconds=20)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        running.wait_healthy()
        stub = stubs.InferenceStub(channel)
        stream = stub.GenerateStream(generate("drain", max_tokens=60), metadata=MINE)
        next(stream)
        running.process.terminate()
        text = "".join(one.text for chunk in stream for one in chunk.choices)
        assert len(text) >= 59, "a running call was cut off"
    assert running.process.wait(20) == 0


def test_a_drain_has_one_end_for_both_protocols(tmp_path: Path) -> None:
    port = free_port()
    running = slow_server(tmp_path, port, drain_seconds=4)
    endless = {"prompt": "drain", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, running.client() as client:
        running.wait_healthy()
        stream = stubs.InferenceStub(channel).GenerateStream(generate("drain", max_tokens=4000), metadata=MINE)
        next(stream)
        with client.stream("POST", "/v1/completions", json=endless) as answer:
            began = time.monotonic()
            running.process.terminate()
            with suppress(httpx.TransportError):  # cut off, as it should be
                answer.read()
            with pytest.raises(grpc.RpcError):
                list(stream)
        assert running.process.wait(20) == 0
    assert 4 <= time.monotonic() - began < 7, "one protocol's patience began when the other's had ended"


def test_a_taken_port_is_told(rpc: tuple[RunningServer, str], tmp_path: Path) -> None:
    port = int(rpc[1].rpartition(":")[2])
    running = start_server(model_folder(tmp_path, template=TEMPLATE), tmp_path / "log", grpc_port=port)
    assert running.process.wait(60) == 2 and "for gRPC" in running.log.read_text()


def test_without_the_library_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenon_core.serving.extras.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        ServerConfig(grpc_port=0).check()
    assert caught.value.remedy is not None and "tenon-core[grpc]" in caught.value.remedy


def test_http_only_servers_do_not_load_it(server: RunningServer) -> None:
    assert httpx.get(f"{server.url}/health").status_code == 200
    loaded = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "cygrpc" not in loaded and "/python" in loaded


def test_the_committed_modules_are_what_the_compiler_writes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "scripts" / "write_rpc.py"), str(tmp_path)], check=True)
    written = tmp_path / "tenon_core" / "serving" / "rpc"
    committed = Path(tenon_core.serving.rpc.__path__[0])
    names = [one.name for one in written.iterdir()]
    assert sorted(names) == ["inference_pb2.py", "inference_pb2.pyi", "inference_pb2_grpc.py"]
    same, _, _ = filecmp.cmpfiles(written, committed, names, shallow=False)
    assert sorted(same) == sorted(names), "run scripts/write_rpc.py"
