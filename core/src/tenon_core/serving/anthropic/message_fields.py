"""POST /v1/messages and its count_tokens: their fields, and the chat request that they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from tenon_platforms.errors import RequestError

from ..closed import Fields, entries
from ..errors import HttpError
from ..protocol import ChatFields, Number, parse
from .message_content import as_messages

# Fields beyond the API's, under the names they have everywhere; they go to the chat request as they are.
EXTENSIONS = (
    "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens", "ignore_eos", "seed",
    "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens", "allowed_token_ids", "logit_bias",
    "cache_salt", "priority", "request_id", "chat_template_kwargs", "structured_outputs", "truncate_prompt_tokens",
    "bad_words", "stream_interval", "session_id", "truncation_side",
)  # fmt: skip
# What is asked of Anthropic's own servers -> values that ask for nothing.
NOT_YET: dict[str, tuple[Any, ...]] = {
    "container": (None,),
    "mcp_servers": (None, []),
    "context_management": (None, {}, {"edits": []}),
    "diagnostics": (None,),
    "thread": (None,),
    "inference_geo": (None,),
    "speed": (None, "standard"),
    "user_profile_id": (None,),
    "workspace_id": (None,),
}
# The chat request's names -> this API's, for errors.
NAMES = {
    "stop": "stop_sequences",
    "max_completion_tokens": "max_tokens",
    "prompt": "messages",
    "thinking_token_budget": "thinking.budget_tokens",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
}
PARTS = {".function.parameters": ".input_schema", ".function.": "."}  # of tools
# Variables by which templates turn thinking on and off.
SWITCHES = ("enable_thinking", "thinking")
LEAST_BUDGET = 1024


class Thinking(Fields):
    """thinking. budget_tokens: a thought that takes more is ended; max_tokens bounds all."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=LEAST_BUDGET, lt=2**31)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class ToolChoice(Fields):
    """tool_choice."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = Field(None, max_length=256)
    disable_parallel_tool_use: bool | None = None


class Metadata(Fields):
    """metadata."""

    user_id: str | None = Field(None, max_length=4096)


class OutputFormat(Fields):
    """output_config.format."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Fields):
    """output_config. effort: a variable of the template, where it takes one."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CacheControl(Fields):
    """cache_control: prefixes are cached without being told to."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Tool(Fields):
    """A tool of the client's."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())  # hints for Anthropic's servers

    name: str
    description: str | None = None
    input_schema: dict[str, Any]


class CountFields(Fields):
    """POST /v1/messages/count_tokens."""

    model: str | None = Field(None, max_length=1024)
    messages: Annotated[list[dict[str, Any]], entries(least=1)]
    system: str | Annotated[list[dict[str, Any]], entries()] | None = None
    tools: Annotated[list[dict[str, Any]], entries()] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None

    @property
    def thinks(self) -> bool:
        """Whether thoughts are wanted."""
        return self.thinking is not None and self.thinking.type != "disabled"


class MessageFields(CountFields):
    """POST /v1/messages."""

    max_tokens: int
    stream: bool | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: int | None = None
    stop_sequences: Annotated[list[str], entries()] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


def check_thread(body: Mapping[str, Any]) -> None:
    """Refuse `thread` as Anthropic's clients know it: they ask for one unbidden, and then send the messages without.

    Raises `HttpError`.
    """
    if body.get("thread") is not None:
        raise HttpError(
            400,
            "thread: this server keeps no threads of messages; leave it out and send all messages",
            param="thread",
            details={"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
        )


def parsed(body: Mapping[str, Any]) -> tuple[MessageFields, dict[str, Any]]:
    """(the API's own fields, those beyond it). Raises `RequestError`, `HttpError`."""
    check_thread(body)
    further = {name: body[name] for name in EXTENSIONS if body.get(name) is not None}
    fields = parse(MessageFields, {name: one for name, one in body.items() if name not in EXTENSIONS}, NOT_YET)
    thinking = fields.thinking
    if thinking is not None and thinking.budget_tokens is not None and thinking.budget_tokens >= fields.max_tokens:
        raise RequestError("thinking.budget_tokens must be less than max_tokens", param="thinking")
    return fields, further


def as_chat(
    fields: CountFields, further: Mapping[str, Any], variables: Set[str], *, marks_thoughts: bool = False
) -> ChatFields:
    """The chat request. variables: those that the template takes. marks_thoughts: whether thoughts can be told apart.

    Raises `RequestError`.
    """
    messages = as_messages(fields.messages, fields.system)
    effort = fields.output_config.effort if fields.output_config is not None else None
    wanted = fields.output_config.format if fields.output_config is not None else None
    switches = {name: fields.thinks for name in SWITCHES if name in variables}
    kwargs = further.get("chat_template_kwargs")
    chat: dict[str, Any] = {
        **further,
        "model": fields.model,
        "messages": messages,
        "tools": None if fields.tools is None else [_tool(place, one) for place, one in enumerate(fields.tools)],
        "chat_template_kwargs": {**switches, **kwargs} if isinstance(kwargs, dict) else kwargs or switches,
        "reasoning_effort": effort if "reasoning_effort" in variables else None,
        "include_reasoning": fields.thinks and fields.thinking is not None and fields.thinking.display != "omitted",
        "response_format": None
        if wanted is None
        else {"type": "json_schema", "json_schema": {"name": "output", "schema": wanted.schema_}},
        "continue_final_message": messages[-1]["role"] == "assistant",
        **_choice(fields.tool_choice),
    }
    if isinstance(fields, MessageFields):
        names = ("stream", "max_tokens", "temperature", "top_p", "top_k")
        chat |= {name: getattr(fields, name) for name in names}
        chat["stop"] = fields.stop_sequences
        if fields.thinks and fields.thinking is not None and marks_thoughts:
            chat["thinking_token_budget"] = fields.thinking.budget_tokens
    return parse(ChatFields, chat)


def _choice(choice: ToolChoice | None) -> dict[str, Any]:
    """`tool_choice` and `parallel_tool_calls` of the chat."""
    if choice is None:
        return {}
    if (choice.type == "tool") != (choice.name is not None):
        raise RequestError('tool_choice: a name goes with the type "tool", and with no other', param="tool_choice")
    named = {"type": "function", "function": {"name": choice.name}}
    return {
        "tool_choice": {"auto": "auto", "any": "required", "tool": named, "none": "none"}[choice.type],
        "parallel_tool_calls": False if choice.disable_parallel_tool_use else None,
    }


def _tool(place: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in the chat's form."""
    if tool.get("type") not in (None, "custom"):
        raise RequestError(
            f"tools[{place}].type is {tool.get('type')!r:.80}: this server runs no tools of its own; only tools with"
            " an input_schema, which the client runs, are available",
            param="tools",
        )
    try:
        checked = parse(Tool, tool, {})
    except RequestError as error:
        raise RequestError(f"tools[{place}].{error.message}", param="tools") from None
    function: dict[str, Any] = {"name": checked.name, "parameters": checked.input_schema}
    if checked.description is not None:
        function["description"] = checked.description
    return {"type": "function", "function": function}
