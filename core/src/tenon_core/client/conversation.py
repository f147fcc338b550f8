"""Conversations to token ids: checked, shielded, rendered by the model's template, encoded. Both faces use it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tenon_core.sampling.validate import ModelFacts
from tenon_platforms.errors import RequestError

from .templates import ChatTemplate
from .tokenizer import ClientTokenizer, Shield, check_text
from .tool_definitions import checked_tools
from .turns import prepared

MAX_MESSAGES = 4096
MAX_VARIABLES = 32
MAX_VARIABLE_TEXT = 1024
MAX_ROLE = 64
NO_TEMPLATE = "this model has no chat template: use the completions API, or start the server with --chat-template FILE"


@dataclass(slots=True, kw_only=True)
class Conversation:
    """Encodes conversations. template: None where the model has none."""

    tokenizer: ClientTokenizer
    template: ChatTemplate | None = None

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
        is_continued: bool = False,
        facts: ModelFacts | None = None,
    ) -> tuple[str, list[int]]:
        """(rendered text, token ids). tools: those the template describes. Raises `RequestError`.

        is_continued: the last message is the beginning of the answer, and the prompt ends with it. facts: of the model
        that is to read all of it.
        """
        template, given, shield = self._prepare(messages, variables, tools)
        end = _left_open(given, shield) if is_continued else ""
        rendered = template.render(given, **self._variables(variables, shield, add_generation_prompt, tools))
        return self._encoded(_cut(rendered, end), shield, facts)

    async def encode_async(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
        is_continued: bool = False,
        facts: ModelFacts | None = None,
    ) -> tuple[str, list[int]]:
        """The same without holding up the event loop."""
        template, given, shield = await asyncio.to_thread(self._prepare, messages, variables, tools)
        end = _left_open(given, shield) if is_continued else ""
        values = await asyncio.to_thread(self._variables, variables, shield, add_generation_prompt, tools)
        rendered = await template.render_async(given, **values)
        kept = _cut(rendered, end)
        return await self.tokenizer.beside(
            partial(self._encoded, kept, shield, facts), num_unbounded=0 if facts is not None else len(kept)
        )

    def _encoded(self, rendered: str, shield: Shield, facts: ModelFacts | None) -> tuple[str, list[int]]:
        text = "".join(piece for piece, _ in shield.split(rendered))
        if facts is not None:
            self.tokenizer.check_length(text, facts)
        return text, self.tokenizer.encode_rendered(rendered, shield)

    def _prepare(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> tuple[ChatTemplate, list[dict[str, Any]], Shield]:
        template = self.template
        if template is None:
            raise RequestError(NO_TEMPLATE, param="messages")
        check_variables(variables, template.check())
        checked_tools(tools or ())
        shield, given = Shield(), prepared(checked(messages), template.source)
        return template, [self._message(place, one, shield) for place, one in enumerate(given)], shield

    def _message(self, place: int, message: Mapping[str, Any], shield: Shield) -> dict[str, Any]:
        role = message.get("role")
        if not isinstance(role, str) or not 0 < len(role) <= MAX_ROLE or not role.replace("_", "").isalnum():
            raise RequestError(f"messages[{place}].role is {role!r:.80}: expected a role's name", param="messages")
        others = {key: value for key, value in message.items() if key not in ("role", "content")}
        content = flat_content(place, message.get("content"))
        shielded: dict[str, Any] = self.tokenizer.shielded({**others, "content": content}, shield)
        return {"role": role, **shielded}

    def _variables(
        self,
        variables: Mapping[str, Any],
        shield: Shield,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> dict[str, Any]:
        tokenizer = self.tokenizer
        return {
            **self.tokenizer.shielded(dict(variables), shield),
            "add_generation_prompt": add_generation_prompt,
            "bos_token": tokenizer.bos_token or "",
            "eos_token": tokenizer.eos_token or "",
            "tools": self.tokenizer.shielded(list(tools), shield) if tools else None,
            "documents": None,
        }

    def close(self) -> None:
        """End the template's workers."""
        if self.template is not None:
            self.template.close()


def _left_open(messages: list[dict[str, Any]], shield: Shield) -> str:
    """Mark the end of the last message's text; the mark, which stands for nothing."""
    last, mark = messages[-1], shield.stand_in("")
    if last["role"] != "assistant" or not last["content"] or last.get("tool_calls"):
        raise RequestError(
            "messages ends with one that cannot be continued: it must be the assistant's, with text and without calls",
            param="messages",
        )
    last["content"] += mark
    return mark


def _cut(rendered: str, mark: str) -> str:
    """The text before the mark."""
    place = rendered.rfind(mark) if mark else len(rendered)
    if place < 0:
        raise RequestError("the chat template leaves the last message out: it cannot be continued", param="messages")
    return rendered[:place]


def checked(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The messages, being a list of maps of bounded length."""
    if not messages:
        raise RequestError("messages is empty: at least one message is needed", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise RequestError(f"{len(messages)} messages: at most {MAX_MESSAGES} are allowed", param="messages")
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise RequestError(f"messages[{place}] is {message!r:.80}: expected a map", param="messages")
    return messages


def flat_content(place: int, content: Any) -> str:
    """A message's content as one text; parts of kind text are joined by line ends."""
    if content is None:
        return ""
    if isinstance(content, list):
        content = "\n".join(_part(place, part) for part in content)
    if not isinstance(content, str):
        raise RequestError(f"messages[{place}].content is {content!r:.80}: expected text", param="messages")
    check_text(content, param="messages")
    return content


def _part(place: int, part: Any) -> str:
    name = part.get("type") if isinstance(part, Mapping) else None
    text = part[name] if name in ("text", "refusal") and isinstance(part.get(name), str) else None
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise RequestError(
            f"messages[{place}].content has a part of type {kind!r:.80}: only text is available yet", param="messages"
        )
    return text


def check_variables(variables: Mapping[str, Any], names: frozenset[str]) -> None:
    """Raise `RequestError` for template variables that the template does not have, or that are no plain values."""
    if len(variables) > MAX_VARIABLES:
        raise RequestError(f"chat_template_kwargs has {len(variables)} entries", param="chat_template_kwargs")
    for name, value in variables.items():
        if name not in names:
            known = ", ".join(sorted(names)) or "none"
            raise RequestError(
                f"chat_template_kwargs has {name!r:.80}, which this model's template does not take (it takes: {known})",
                param="chat_template_kwargs",
            )
        is_text = isinstance(value, str) and len(value) <= MAX_VARIABLE_TEXT
        if not is_text and not isinstance(value, (bool, int, float, type(None))):
            raise RequestError(
                f"chat_template_kwargs[{name!r}] must be a number, true, false or a text of at most"
                f" {MAX_VARIABLE_TEXT} characters",
                param="chat_template_kwargs",
            )
