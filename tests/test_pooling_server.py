"""Embeddings, scores, labels and ranks from a real server, through the official client where it has a call for them."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from served import LIMIT_S, Served, serving
from tiny_pooling import TinyPooling, encoder_tokenizer, make_pooling

pytestmark = pytest.mark.e2e
FLAGS = ("--platform", "reference", "--max-num-seqs", "8", "--num-blocks", "60", "--stall-seconds", "60")
ROUTES = ("/v1/embeddings", "/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank")
TEXTS = ["a", "several words", "longer than the others, and by far the longest of them all"]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> TinyPooling:
    return make_pooling("minilm", tmp_path_factory.mktemp("pooling"), tokenizer=encoder_tokenizer())


@pytest.fixture(scope="module")
def server(embedder: TinyPooling, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(embedder.path, tmp_path_factory.mktemp("log") / "server.log", *FLAGS) as served:
        yield served


@pytest.fixture
def ai(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=LIMIT_S) as made:
        yield made


def framed(text: str) -> list[int]:
    return [256, *text.encode(), 257]


def post(server: Served, path: str, body: dict[str, Any]) -> httpx.Response:
    headers = {"content-type": "application/json"}  # written by json: ASCII, so that half a surrogate pair can be sent
    return httpx.post(server.url + path, content=json.dumps(body), headers=headers, timeout=LIMIT_S)


def test_embeddings_through_the_official_client(ai: openai.OpenAI, server: Served, embedder: TinyPooling) -> None:
    model = server.model()
    answer = ai.embeddings.create(model=model, input=TEXTS)  # the client asks for base64 by itself
    assert [one.index for one in answer.data] == [0, 1, 2] and answer.model == model
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(len(framed(text)) for text in TEXTS)
    for text, one in zip(TEXTS, answer.data, strict=True):
        np.testing.assert_allclose(one.embedding, embedder.expect(framed(text)), atol=2e-5)
    floats = ai.embeddings.create(model=model, input=TEXTS, encoding_format="float")
    for one, other in zip(answer.data, floats.data, strict=True):
        np.testing.assert_allclose(one.embedding, other.embedding, atol=2e-6)
    short = ai.embeddings.create(model=model, input=TEXTS[0], dimensions=8).data[0].embedding
    whole = np.array(answer.data[0].embedding[:8])
    np.testing.assert_allclose(short, whole / np.linalg.norm(whole), atol=1e-6)
    ids: list[list[int]] = [framed(text) for text in TEXTS]
    by_ids = ai.embeddings.create(model=model, input=ids)
    for one, other in zip(by_ids.data, answer.data, strict=True):
        np.testing.assert_allclose(one.embedding, other.embedding, atol=2e-6)
    assert len(ai.embeddings.create(model=model, input=ids[0]).data) == 1


def test_many_inputs_at_once(ai: openai.OpenAI, server: Served, embedder: TinyPooling) -> None:
    texts = [f"text number {index} " + "x" * (index % 90) for index in range(150)]
    answer = ai.embeddings.create(model=server.model(), input=texts)
    for index in (0, 77, 149):
        np.testing.assert_allclose(answer.data[index].embedding, embedder.expect(framed(texts[index])), atol=2e-5)
    server_free(server)


def server_free(server: Served) -> None:
    """Nothing runs and every block is free once a further request made the engine tell."""
    for _ in range(20):
        post(server, "/v1/embeddings", {"input": "x"})
        if server.metric("tenon:num_requests_running") + server.metric("tenon:kv_cache_usage_perc") == 0:
            return
    raise AssertionError("blocks or rows leaked")


def test_pooling_scores_and_ranks(server: Served, embedder: TinyPooling) -> None:
    tokens = post(server, "/pooling", {"input": "abc", "task": "token_embed"}).json()["data"][0]["data"]
    assert np.array(tokens).shape == (5, 64)
    packed = post(server, "/pooling", {"input": "abc", "encoding_format": "base64"}).json()["data"][0]["data"]
    vector = np.frombuffer(base64.b64decode(packed), dtype="<f4")
    np.testing.assert_allclose(vector, embedder.expect(framed("abc")), atol=2e-5)

    query, others = "abc", ["abd", "zzz zzz", "abc"]
    own = {text: embedder.expect(framed(text)).numpy() for text in (query, *others)}
    cosines = [float(own[query] @ own[text]) for text in others]
    scores = post(server, "/v1/score", {"text_1": query, "text_2": others}).json()
    np.testing.assert_allclose([one["score"] for one in scores["data"]], cosines, atol=2e-5)
    body = {"query": query, "documents": [others[0], {"text": others[1]}, others[2]], "top_n": 2}
    ranked = post(server, "/v2/rerank", body).json()["results"]
    best = sorted(range(3), key=lambda index: -cosines[index])[:2]
    assert [one["index"] for one in ranked] == best and ranked[0]["document"] == {"text": "abc"}
    assert math.isclose(ranked[0]["relevance_score"], cosines[best[0]], abs_tol=2e-5)


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": ""}, "input"),
        ("/v1/embeddings", {}, "input"),
        ("/v1/embeddings", {"input": ["x"] * 3000}, "input"),
        ("/v1/embeddings", {"input": [[1, 2], []]}, "input"),
        ("/v1/embeddings", {"input": [270]}, "input"),
        ("/v1/embeddings", {"input": [-1]}, "input"),
        ("/v1/embeddings", {"input": [2**31]}, "input"),
        ("/v1/embeddings", {"input": "x" * 400}, "input"),
        ("/v1/embeddings", {"input": "x", "dimensions": 65}, "dimensions"),
        ("/v1/embeddings", {"input": "x", "dimensions": 0}, "dimensions"),
        ("/v1/embeddings", {"input": "x", "dimensions": True}, "dimensions"),
        ("/v1/embeddings", {"input": "x", "encoding_format": "hex"}, "encoding_format"),
        ("/v1/embeddings", {"input": "x", "truncate_prompt_tokens": 10**6}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"input": "\ud800"}, None),
        ("/pooling", {"input": "x", "task": "classify"}, "task"),
        ("/pooling", {"input": "x", "task": "reap"}, "task"),
        ("/classify", {"input": "x"}, "task"),
        ("/score", {"text_1": "x"}, "text_1"),
        ("/score", {"text_1": ["x", "y"], "text_2": ["x"] * 3}, "text_1"),
        ("/score", {"text_1": "x", "text_2": []}, "text_2"),
        ("/rerank", {"query": "x", "documents": []}, "documents"),
        ("/rerank", {"query": "x", "documents": ["x"] * 3000}, "documents"),
        ("/rerank", {"query": "x", "documents": ["x"], "top_n": -1}, "top_n"),
        ("/rerank", {"query": "x", "documents": [{"image": "x"}]}, "documents"),
        ("/v1/completions", {"prompt": "x"}, "model"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, None),
    ],
)
def test_what_is_wrong_is_named(
    server: Served, embedder: TinyPooling, path: str, body: dict[str, Any], named: str | None
) -> None:
    answer = post(server, path, body)
    assert answer.status_code == 400 and str(embedder.path) not in answer.text, answer.text
    assert named is None or answer.json()["error"]["param"] == named, answer.text
    assert post(server, "/v1/embeddings", {"input": "x"}).status_code == 200


def test_a_generator_refuses_vectors(tiny_folder: Path, tmp_path: Path) -> None:
    with serving(tiny_folder, tmp_path / "server.log", *FLAGS) as served:
        for path in ROUTES:
            texts = {"query": "x", "documents": ["x"]} if "rerank" in path else {"text_1": "x", "text_2": "x"}
            body = texts if "rerank" in path or "score" in path else {"input": "x"}
            answer = post(served, path, body)
            assert answer.status_code == 400 and "--runner pooling" in answer.json()["error"]["message"], answer.text
    flags = (*FLAGS, "--runner", "pooling", "--convert", "embed", "--pooling", "mean")
    with serving(tiny_folder, tmp_path / "converted.log", *flags) as served:
        vector = post(served, "/v1/embeddings", {"input": "x"}).json()["data"][0]["embedding"]
        assert len(vector) == 64 and abs(np.linalg.norm(vector) - 1) < 1e-5


def test_a_cross_encoder_serves_ranks(tmp_path: Path) -> None:
    import torch

    model = make_pooling("bert-cross", tmp_path, tokenizer=encoder_tokenizer())
    with serving(model.path, tmp_path / "server.log", *FLAGS) as served:
        documents = ["one", "another one", "the third of them"]
        answer = post(served, "/rerank", {"query": "which?", "documents": documents}).json()["results"]
        for one in answer:
            ids = [*framed("which?"), *documents[one["index"]].encode(), 257]
            expected = torch.sigmoid(model.expect(ids, len(framed("which?"))))[0]
            assert abs(one["relevance_score"] - float(expected)) < 2e-5
        found = [one["relevance_score"] for one in answer]
        assert found == sorted(found, reverse=True) and len(found) == 3
        cut = {"query": "which?", "documents": ["y" * 500], "max_tokens_per_doc": 20}
        assert post(served, "/rerank", cut).json()["usage"]["total_tokens"] == 8 + 20 + 1
        assert post(served, "/rerank", {**cut, "max_tokens_per_doc": None}).status_code == 400
        probs = post(served, "/classify", {"input": "x"}).json()["data"][0]
        assert probs["num_classes"] == 1 and 0 < probs["probs"][0] < 1
