"""GET /openapi.json: every route is in it and nothing else, ceilings are the table's, and answers are as it says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from running_server import RunningServer

from tenon_core.sampling.params import CEILINGS, LENGTH_CEILINGS
from tenon_core.serving import answer_types
from tenon_core.serving.app import ADMIN, TABLE, routes
from tenon_core.serving.description.document import DESCRIBED, FILES, document
from tenon_core.serving.protocol import NOT_YET

ROUTES = (
    *((method, path, is_public) for method, path, _, is_public in TABLE),
    *((method, path, False) for method, path, _ in ADMIN),
)
DOCUMENT: dict[str, Any] = json.loads(document(ROUTES, has_keys=True))
SCHEMAS = DOCUMENT["components"]["schemas"]


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            yield f"{method.upper()} {path}", operation


@pytest.mark.unit
def test_every_route_is_described_and_nothing_else() -> None:
    assert [name for name, _ in operations()] == list(dict.fromkeys(route.replace(":path", "") for route in routes()))
    assert set(DESCRIBED) == set(routes()) - {f"GET {path}" for path in FILES}, "said of a route that is not served"
    names = [operation["operationId"] for _, operation in operations()]
    assert len(set(names)) == len(names)


@pytest.mark.unit
def test_references_lead_somewhere_and_keys_are_asked_for() -> None:
    found = set(re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(DOCUMENT)))
    assert found <= set(SCHEMAS) and len(found) > 50
    public = {f"{method} {path}" for method, path, is_public in ROUTES if is_public}
    for name, operation in operations():
        assert ("security" in operation) == (name not in public) == ("401" in operation["responses"]), name
        if "requestBody" in operation:
            assert {"400", "404", "408", "413", "415", "429"} <= set(operation["responses"]), name
        error = operation["responses"]["400"]["content"]["application/json"]["schema"]["$ref"]
        assert error.endswith("/MessageErrorAnswer" if "/v1/messages" in name else "/ErrorAnswer"), name
    open_to_all = json.loads(document(ROUTES, has_keys=False))
    assert "security" not in json.dumps(open_to_all["paths"]) and "securitySchemes" not in open_to_all["components"]


@pytest.mark.unit
@pytest.mark.parametrize("model", ["CompletionFields", "ChatFields", "ResponseFields", "MessageFields"])
def test_ceilings_are_the_tables(model: str) -> None:
    properties = SCHEMAS[model]["properties"]
    assert SCHEMAS[model]["additionalProperties"] is False
    checked = 0
    for name, (least, greatest) in CEILINGS.items():
        if (model, name) == ("CompletionFields", "max_tokens"):
            least = 0  # the prompt alone
        for one in properties.get(name, {}).get("anyOf", ()):
            if one["type"] in ("integer", "number"):
                assert (one["minimum"], one["maximum"]) == (least, greatest), name
                checked += 1
    for name, longest in LENGTH_CEILINGS.items():
        bounds = [one.get("maxItems", one.get("maxProperties")) for one in properties.get(name, {}).get("anyOf", ())]
        assert name not in properties or longest in bounds, name
        checked += name in properties
    assert checked > 8


@pytest.mark.unit
def test_what_is_not_served_yet_is_described_by_the_values_that_ask_for_nothing() -> None:
    properties = SCHEMAS["CompletionFields"]["properties"]
    for name, neutral in NOT_YET.items():
        assert name in properties
        if properties[name].get("enum"):
            assert properties[name]["enum"] == json.loads(json.dumps(neutral))
    assert properties["suffix"] == {"enum": [None, ""]}


CHAT = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 4}
TALK: dict[str, tuple[dict[str, Any], Any]] = {
    "/v1/completions": (
        {"prompt": ["ab", "c"], "n": 2, "max_tokens": 3, "logprobs": 2, "echo": True, "prompt_logprobs": 1,
         "return_token_ids": True},
        answer_types.CompletionAnswer,
    ),
    "/v1/chat/completions": (
        {**CHAT, "n": 2, "logprobs": True, "top_logprobs": 2, "prompt_logprobs": 1, "return_token_ids": True},
        answer_types.ChatAnswer,
    ),
    "/v1/messages": (CHAT, answer_types.MessageAnswer),
    "/v1/messages/count_tokens": ({"messages": CHAT["messages"]}, answer_types.TokenCount),
    "/v1/responses": (
        {"input": "abc", "max_output_tokens": 4, "include": ["message.output_text.logprobs"], "top_logprobs": 1},
        answer_types.ResponseAnswer,
    ),
    "/tokenize": ({"prompt": "ab", "return_token_strs": True}, answer_types.Tokens),
    "/detokenize": ({"tokens": [97]}, answer_types.Detokenized),
}  # fmt: skip


@pytest.mark.e2e
@pytest.mark.parametrize("path", TALK)
def test_answers_are_as_described(client: httpx.Client, path: str) -> None:
    body, kind = TALK[path]
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    msgspec.json.decode(answer.content, type=kind)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("path", "kind"),
    [("/v1/completions", answer_types.CompletionAnswer), ("/v1/chat/completions", answer_types.ChatChunk)],
)
def test_pieces_of_streams_are_as_described(client: httpx.Client, path: str, kind: Any) -> None:
    body = {**TALK[path][0], "stream": True, "stream_options": {"include_usage": True}}
    if path == "/v1/completions":
        body["prompt"] = "ab"
    lines = [line for line in client.post(path, json=body).text.splitlines() if line]
    assert lines[-1] == "data: [DONE]" and len(lines) > 4
    for line in lines[:-1]:
        msgspec.json.decode(line.removeprefix("data: "), type=kind)


@pytest.mark.e2e
def test_questions_are_answered_as_described(client: httpx.Client) -> None:
    for path, kind in (
        ("/v1/models", answer_types.ModelList),
        ("/v1/models/fake", answer_types.Model),
        ("/ready", answer_types.Readiness),
        ("/health", answer_types.Health),
        ("/version", answer_types.Version),
        ("/engine", answer_types.EngineAnswer),
    ):
        msgspec.json.decode(client.get(path).content, type=kind)
    made = client.post("/v1/responses", json={"input": "a", "max_output_tokens": 2}).json()["id"]
    msgspec.json.decode(client.get(f"/v1/responses/{made}").content, type=answer_types.ResponseAnswer)
    msgspec.json.decode(client.get(f"/v1/responses/{made}/input_items").content, type=answer_types.InputItems)
    msgspec.json.decode(client.delete(f"/v1/responses/{made}").content, type=answer_types.DeletedResponse)


@pytest.mark.e2e
def test_the_served_document(client: httpx.Client, server: RunningServer) -> None:
    served = ROUTES[: len(TABLE)]  # nobody asked for the others
    assert client.get("/openapi.json").json() == json.loads(document(served, has_keys=True))
    assert httpx.get(f"{server.url}/openapi.json").status_code == 401
    assert "http" not in json.dumps([DOCUMENT["paths"], DOCUMENT.get("servers")]), "nothing is loaded from elsewhere"
