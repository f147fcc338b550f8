"""The fields that requests may have: strict models, closed to unknown names. Values' ranges are `SamplingParams`' own.

A field of OpenAI's API that is not served yet is refused by name, unless its value asks for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError

from tenon_core.sampling.params import SamplingParams
from tenon_platforms.errors import RequestError

from . import formats
from .closed import MAX_FIELDS, MAX_LIST, Fields, Labels, at_most, entries, shown

Number = Annotated[float, Field(allow_inf_nan=False)]


def _are_ids(ids: list[Any]) -> list[Any]:
    """Millions of ids, looked at without a step of Python for each."""
    if ids and (set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= 2**31):
        raise ValueError("token ids are whole numbers from 0 to 2147483647")
    return ids


TokenIds = Annotated[list[Any], entries(2**22), AfterValidator(_are_ids)]
Prompt = str | TokenIds | Annotated[list[str], entries()] | Annotated[list[TokenIds], entries()]

# Field -> values that ask for nothing, as some clients always send them.
NOT_YET: dict[str, tuple[Any, ...]] = {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "parallel_tool_calls": (None, True, False),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "moderation": (None,),
    "prompt_cache_options": (None, {"mode": "implicit"}),
    "prompt_cache_retention": (None, "in_memory"),
    "logits_processors": (None, []),
    "suffix": (None, ""),
    "best_of": (None, 1),
    "audio": (None,),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "reasoning_effort": (None, "none"),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
    "documents": (None, []),
    "store": (None, False),
    "service_tier": (None, "auto", "default"),
    "prompt_embeds": (None,),
    "mm_processor_kwargs": (None, {}),
    "kv_transfer_params": (None,),
    "ec_transfer_params": (None,),
    "media_io_kwargs": (None, {}),
    "thinking_token_budget": (None, -1),
    "watermarking": (None, False),
    "logprob_token_ids": (None,),
    "repetition_detection": (None,),
    "routed_experts_prompt_start": (None, 0),
    "return_token_offsets": (None, False),
    "return_mm_kwargs": (None, True),
    "vllm_xargs": (None, {}),
}
# Field -> what to send in its place.
INSTEAD = {
    "functions": ": send tools",
    "function_call": ": send tool_choice",
    "guided_json": ": send structured_outputs",
    "guided_regex": ": send structured_outputs",
    "guided_choice": ": send structured_outputs",
    "guided_grammar": ": send structured_outputs",
    "store": " in this API: POST /v1/responses keeps what it answers",
}
DEFAULT_MAX_TOKENS = 16  # of a completion
REFUSED = {"chat_template": "a chat template comes with the model or from the server's operator, not with a request"}


class StreamOptions(Fields):
    """include_usage: a last piece with the counts of tokens. continuous_usage_stats: every piece has those so far."""

    include_usage: bool = False
    continuous_usage_stats: bool | None = None
    include_obfuscation: Literal[False] | None = None  # padding against listeners who measure


class SamplingFields(Fields):
    """How tokens are chosen. Names are OpenAI's, then the further ones that this field's servers agree on."""

    model: str | None = Field(None, max_length=1024)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], entries()] | None = None
    logit_bias: Annotated[dict[str, Number], at_most(MAX_LIST)] | None = None
    response_format: formats.ResponseFormat | None = None
    user: str | None = Field(None, max_length=1024)
    metadata: Labels | None = None
    safety_identifier: str | None = Field(None, max_length=1024)
    prompt_cache_key: str | None = Field(None, max_length=1024)  # a hint for routers: prefixes are found by content
    # beyond OpenAI's
    top_k: int | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[int], entries()] | None = None
    include_stop_str_in_output: bool | None = None
    allowed_token_ids: Annotated[list[int], entries()] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    structured_outputs: formats.StructuredFields | None = None
    bad_words: Annotated[list[str], entries()] | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    stream_interval: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    add_special_tokens: bool | None = None
    cache_salt: str | None = Field(None, min_length=1, max_length=256)
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    request_id: str | None = Field(None, max_length=256)
    session_id: str | None = Field(None, max_length=256)  # a label: turns of one conversation find their prefix anyway

    def interval(self, least: int) -> int:
        """Tokens between two pieces of a stream. least: the server's own."""
        return max(least, self.stream_interval or 0)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the counts of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def wants_running_usage(self) -> bool:
        """Whether every piece of a stream has the counts so far."""
        return self.wants_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def names(self) -> dict[str, str]:
        """The engine's names -> those of the fields that were sent, for errors (`field_names.names_of`)."""
        if self.structured_outputs is not None:
            return {}
        return {"structured_outputs": "tool_choice" if self.response_format is None else "response_format"}

    def sampling(self, **given: Any) -> SamplingParams:
        """The engine's parameters. given: fields that a protocol names otherwise. Raises `RequestError`."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options is for streams: set stream to true", param="stream_options")
        if self.stream_options is not None and self.stream_options.continuous_usage_stats and not self.wants_usage:
            raise RequestError(
                "stream_options.continuous_usage_stats goes with include_usage: set it to true", param="stream_options"
            )
        if self.spaces_between_special_tokens and self.skip_special_tokens is False:
            raise RequestError(
                "spaces_between_special_tokens: text is what the tokens say, nothing is put between them",
                param="spaces_between_special_tokens",
            )
        values = {name: getattr(self, name) for name in SHARED_NAMES}
        values["logit_bias"] = None if self.logit_bias is None else bias_by_id(self.logit_bias)
        values["structured_outputs"] = formats.wanted(self.response_format, self.structured_outputs)
        values.update(given)
        return SamplingParams(**{name: value for name, value in values.items() if value is not None})


SHARED_NAMES = (
    "n", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "top_k", "min_p",
    "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids", "include_stop_str_in_output",
    "allowed_token_ids", "skip_special_tokens", "prompt_logprobs", "bad_words",
)  # fmt: skip


class BeamFields(SamplingFields):
    """use_beam_search: `n` beams instead of `n` samples."""

    use_beam_search: bool | None = None
    length_penalty: Number | None = None
    early_stopping: bool | Literal["never"] | None = None

    def beams(self) -> dict[str, Any]:
        """The engine's parameters of the search. Raises `RequestError` for a part of it without the whole."""
        if self.use_beam_search:
            given = {"length_penalty": self.length_penalty, "early_stopping": self.early_stopping}
            return {"beam_width": 1 if self.n is None else self.n, **given}
        for name in ("length_penalty", "early_stopping"):
            if getattr(self, name) is not None:
                raise RequestError(f"{name} is for beam search: set use_beam_search to true", param=name)
        return {}


class CompletionFields(BeamFields):
    """POST /v1/completions."""

    prompt: Prompt
    max_tokens: Annotated[int, Field(json_schema_extra={"minimum": 0})] | None = None  # 0: with echo
    echo: bool | None = None
    logprobs: int | None = None

    @property
    def is_prompt_alone(self) -> bool:
        """Whether the echoed prompt, with its log-probabilities, is all that is wanted."""
        return bool(self.echo) and self.max_tokens == 0

    @property
    def most_tokens(self) -> int:
        """The engine's limit; it generates one token after any prompt."""
        return 1 if self.is_prompt_alone else DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def least_tokens(self) -> int | None:
        """The engine's `min_tokens`: what is not wanted has no least length."""
        return min(self.min_tokens or 0, 0) if self.is_prompt_alone else self.min_tokens


class ChatFields(BeamFields):
    """POST /v1/chat/completions."""

    messages: Annotated[list[dict[str, Any]], entries(least=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[dict[str, Any]], entries()] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = Field(None, max_length=64)
    verbosity: str | None = Field(None, max_length=64)
    include_reasoning: bool | None = None
    thinking_token_budget: Annotated[int, Field(ge=-1, lt=2**31)] | None = None  # -1: no end to it
    continue_final_message: bool | None = None
    echo: bool | None = None
    return_prompt_text: bool | None = None


class TokenizeFields(Fields):
    """POST /tokenize: a prompt or messages."""

    model: str | None = Field(None, max_length=1024)
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]], entries(least=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[dict[str, Any]], entries()] | None = None
    return_token_strs: bool | None = None


class DetokenizeFields(Fields):
    """POST /detokenize."""

    model: str | None = Field(None, max_length=1024)
    tokens: Annotated[list[Any], entries(2**20), AfterValidator(_are_ids)]


F = TypeVar("F", bound=Fields)


def parse(kind: type[F], body: Mapping[str, Any], not_yet: Mapping[str, tuple[Any, ...]] = NOT_YET) -> F:
    """A request's fields from its body. Raises `RequestError` naming the field."""
    if len(body) > MAX_FIELDS:
        raise RequestError(f"the body has {len(body)} fields: at most {MAX_FIELDS} are allowed")
    body = dict(body)
    for name, why in REFUSED.items():
        if body.pop(name, None) is not None:
            raise RequestError(f"{name} is not taken: {why}", param=name)
    for name, neutral in not_yet.items():
        if name in body and name not in kind.model_fields and not _is_one_of(body.pop(name), neutral):
            raise RequestError(f"{name} is not available yet{INSTEAD.get(name, '')}", param=name)
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise refusal(error) from None


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(type(value) is type(one) and value == one for one in neutral)


def refusal(error: ValidationError) -> RequestError:
    """The first thing that is wrong, in words; never the whole value. A field of several forms is none of them."""
    errors = error.errors(include_url=False, include_context=False)
    first = errors[0]
    names = [part for part in first["loc"] if isinstance(part, str) and part.isidentifier() and not _is_type(part)]
    param = names[0] if names else None
    path = ".".join(names)
    if first["type"] == "extra_forbidden":
        return RequestError(f"{str(first['loc'][-1])!r:.80} is not a field of this request", param=param)
    if first["type"] == "missing":
        return RequestError(f"{path} is needed", param=param)
    forms = [one for one in errors if one["loc"][0] == param] if first["type"].endswith("_type") else [first]
    whys = dict.fromkeys(one["msg"].removeprefix("Value error, ") for one in forms)
    why = ", or ".join(f"{one[:1].lower()}{one[1:]}" for one in whys)
    return RequestError(f"{path} is {shown(first.get('input'))}: {why}", param=param)


def _is_type(part: str) -> bool:
    """Whether a part of an error's place is one of several types that a field may have: no name of a field."""
    return part in ("str", "int", "float", "bool") or part[:1].isupper()


def bias_by_id(bias: dict[str, float]) -> dict[int, float]:
    """Biases by token id; JSON has only texts for keys."""
    found = {}
    for text, value in bias.items():
        if not (text.isascii() and text.isdigit() and len(text) <= 10):
            raise RequestError(f"logit_bias has the key {text!r:.80}: expected a token id", param="logit_bias")
        found[int(text)] = value
    return found
