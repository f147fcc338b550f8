"""POST /v1/responses: its fields, and the chat request that they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from tenon_platforms.errors import RequestError

from ..closed import Fields, Labels, entries
from ..protocol import ChatFields, Number, parse
from .response_items import as_messages

LABEL = 1024
# Fields beyond the API's, under the names they have everywhere; they go to the chat request as they are.
EXTENSIONS = (
    "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens", "ignore_eos", "seed",
    "stop", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens", "allowed_token_ids", "logit_bias",
    "cache_salt", "priority", "request_id", "chat_template_kwargs", "structured_outputs", "truncate_prompt_tokens",
    "bad_words", "thinking_token_budget", "stream_interval", "session_id", "truncation_side",
)  # fmt: skip
# What is asked of OpenAI's own servers -> values that ask for nothing.
NOT_YET: dict[str, tuple[Any, ...]] = {
    "conversation": (None,),
    "prompt": (None,),
    "context_management": (None, []),
    "moderation": (None,),
    "image": (None,),
    "access_programs": (None,),
    "background_options": (None,),
    "prompt_cache_options": (None, {"mode": "implicit"}),
    "prompt_cache_retention": (None, "in_memory"),
    "service_tier": (None, "auto", "default"),
}
# The chat request's names -> this API's, for errors.
NAMES = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
    "reasoning_effort": "reasoning.effort",
}
PARTS = {".function.": "."}  # of tools
INCLUDES = Literal[
    "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
    "message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs",
    "reasoning.encrypted_content", "message.output_text.logprobs",
]  # fmt: skip
LOGPROBS = "message.output_text.logprobs"


class Reasoning(Fields):
    """effort: a variable of the template. The thought is told whole: a summary asks for nothing more.

    Which earlier thoughts a model reads again is its template's to say.
    """

    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None
    effort: str | None = Field(None, max_length=64)
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class TextFormat(Fields):
    """text.format."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(None, max_length=256)
    description: str | None = Field(None, max_length=65_536)
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(Fields):
    """text."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class StreamChoices(Fields):
    """stream_options. Obfuscation, padding against listeners who measure, is not available."""

    include_obfuscation: Literal[False] | None = None


class InputTokenFields(Fields):
    """POST /v1/responses/input_tokens: what a prompt is made of."""

    model: str | None = Field(None, max_length=1024)
    input: str | Annotated[list[dict[str, Any]], entries()] | None = None
    instructions: str | None = None
    tools: Annotated[list[dict[str, Any]], entries()] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    previous_response_id: str | None = Field(None, max_length=256)
    truncation: str | None = Field(None, max_length=64)


class ResponseFields(InputTokenFields):
    """The request. Values' ranges are the chat request's own."""

    max_output_tokens: int | None = None
    max_tool_calls: Annotated[int, Field(ge=1, lt=2**31)] | None = None  # of tools that run here: there are none
    temperature: Number | None = None
    top_p: Number | None = None
    top_logprobs: int | None = None
    include: Annotated[list[INCLUDES], entries(64)] | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: StreamChoices | None = None
    metadata: Labels | None = None
    user: str | None = Field(None, max_length=LABEL)
    safety_identifier: str | None = Field(None, max_length=LABEL)
    prompt_cache_key: str | None = Field(None, max_length=LABEL)

    @property
    def has_logprobs(self) -> bool:
        """Whether the text comes with log-probabilities."""
        return LOGPROBS in (self.include or ())


def parsed(body: Mapping[str, Any]) -> tuple[ResponseFields, dict[str, Any]]:
    """(the API's own fields, those beyond it). Raises `RequestError`."""
    further = {name: body[name] for name in EXTENSIONS if body.get(name) is not None}
    fields = parse(ResponseFields, {name: one for name, one in body.items() if name not in EXTENSIONS}, NOT_YET)
    if fields.input is None and fields.previous_response_id is None:
        raise RequestError("input is needed", param="input")
    if fields.truncation not in (None, "disabled"):
        raise RequestError(
            f"truncation is {fields.truncation!r}: nothing is left out of a conversation here; send less of it, or"
            ' "disabled"',
            param="truncation",
        )
    if fields.top_logprobs and not fields.has_logprobs:
        raise RequestError(f'top_logprobs is given without include: add "{LOGPROBS}" to it', param="top_logprobs")
    if fields.stream_options is not None and not fields.stream:
        raise RequestError("stream_options is for streams: set stream to true", param="stream_options")
    if fields.background and fields.stream:
        raise RequestError("a response in the background has no stream: ask for it by its id", param="background")
    return fields, further


def as_chat(fields: ResponseFields, further: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> ChatFields:
    """The chat request. items: the whole conversation, checked. Raises `RequestError` with this API's names."""
    text = fields.text or TextOptions()
    messages = as_messages(items, fields.instructions)
    if not messages:
        raise RequestError("input is empty: at least one item is needed", param="input")
    chat: dict[str, Any] = {
        **further,
        "model": fields.model,
        "messages": messages,
        "stream": fields.stream or fields.has_logprobs,  # positions are told with their text only as it comes
        "max_completion_tokens": fields.max_output_tokens,
        "temperature": fields.temperature,
        "top_p": fields.top_p,
        "logprobs": fields.has_logprobs,
        "top_logprobs": fields.top_logprobs if fields.has_logprobs else None,
        "tools": None if fields.tools is None else [_tool(place, one) for place, one in enumerate(fields.tools)],
        "tool_choice": _choice(fields.tool_choice),
        "parallel_tool_calls": fields.parallel_tool_calls,
        "response_format": _format(text.format),
        "reasoning_effort": None if fields.reasoning is None else fields.reasoning.effort,
        "verbosity": text.verbosity,
    }
    return parse(ChatFields, chat)


def _tool(place: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    """A function in the chat's form."""
    if tool.get("type") != "function":
        raise RequestError(
            f"tools[{place}].type is {tool.get('type')!r:.80}: this server runs no tools of its own; only functions,"
            " which the client runs, are available",
            param="tools",
        )
    return {"type": "function", "function": {name: tool[name] for name in _FUNCTION if tool.get(name) is not None}}


_FUNCTION = ("name", "description", "parameters", "strict")


def _choice(choice: Any) -> Any:
    """`tool_choice` in the chat's form."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if choice.get("type") == "allowed_tools":
        tools = choice.get("tools")
        listed = tools if isinstance(tools, list) else [tools]
        allowed = [
            {"type": "function", "function": {"name": one.get("name") if isinstance(one, dict) else None}}
            for one in listed
        ]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": allowed}}
    return choice


def _format(given: TextFormat | None) -> dict[str, Any] | None:
    """`response_format` of the chat."""
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return {"type": "json_object"}
    if given.schema_ is None:
        raise RequestError("text.format has no schema", param="text")
    return {"type": "json_schema", "json_schema": {"name": given.name or "", "schema": given.schema_}}
