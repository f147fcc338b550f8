"""Structural tags, as data: free text in which tags hold schemas.

Two forms are spoken: {"structures": [{"begin", "schema", "end"}], "triggers": [text]}, and XGrammar's, {"type":
"structural_tag", "format": {...}}, which nests sequences, choices and schemas. Knows no library.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .structured import refusal

MAX_TAGS = 128
MAX_FREE = 4
FORMATS = ("const_string", "json_schema", "any_text", "sequence", "or", "tag", "triggered_tags", "tags_with_separator")
SHAPE = '{"structures": [{"begin": TEXT, "schema": {...}, "end": TEXT}], "triggers": [TEXT]}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """What follows once `trigger` was said: the rest of `begin`, a value of `schema`, then `end`."""

    trigger: str
    begin: str
    schema: dict[str, Any]
    end: str


def is_nested(text: str) -> bool:
    """Whether it is XGrammar's form."""
    return isinstance(value := _loaded(text), dict) and "format" in value


def tags_of(text: str) -> list[Tag]:
    """The tags of the first form. Raises `RequestError`."""
    value = _loaded(text)
    try:
        tags = [_tag(one, value["triggers"]) for one in value["structures"]]
    except (KeyError, TypeError, AttributeError):
        raise refusal(f"structural_tag must be {SHAPE}") from None
    if not 0 < len(tags) <= MAX_TAGS:
        raise refusal(f"structural_tag has {len(tags)} structures: 1 to {MAX_TAGS} are allowed")
    return tags


def as_format(text: str, schema: Callable[[str], str]) -> str:
    """Either form in XGrammar's. schema: rewrites a schema's text. Raises `RequestError`."""
    if is_nested(text):
        made = _Formats(schema).rewritten(_loaded(text)["format"], "/format")
        return json.dumps({"type": "structural_tag", "format": made})
    tags = tags_of(text)
    contents = [{"type": "json_schema", "json_schema": json.loads(schema(json.dumps(tag.schema)))} for tag in tags]
    made = [
        {"type": "tag", "begin": tag.begin, "content": content, "end": tag.end}
        for tag, content in zip(tags, contents, strict=True)
    ]
    triggers = list(dict.fromkeys(tag.trigger for tag in tags))
    return json.dumps({"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": triggers,
                                                            "tags": made}})  # fmt: skip


@dataclass(slots=True)
class _Formats:
    """Writes a nested format anew, with its schemas. What can make a step's work grow without bound is refused."""

    schema: Callable[[str], str]
    num_formats: int = 0
    num_free: int = 0

    def rewritten(self, value: Any, at: str) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in FORMATS:
            raise refusal(f"structural_tag has at {at} no format of the types {', '.join(FORMATS)}")
        self.num_formats += 1
        self.num_free += kind == "any_text"
        if self.num_formats > MAX_TAGS or self.num_free > MAX_FREE:
            raise refusal(f"structural_tag has more than {MAX_TAGS} formats, or {MAX_FREE} of them any_text")
        made = dict(value)
        if kind == "json_schema":
            if extra := value.keys() - {"type", "json_schema"}:
                raise refusal(f"structural_tag has at {at} what is not supported: {', '.join(sorted(extra))[:200]}")
            made["json_schema"] = json.loads(self.schema(json.dumps(value.get("json_schema", True))))
        if "content" in made:
            made["content"] = self.rewritten(made["content"], f"{at}/content")
        for name in ("elements", "tags"):
            if isinstance(inner := made.get(name), list):
                made[name] = [self.rewritten(one, f"{at}/{name}/{index}") for index, one in enumerate(inner)]
        return made


def _tag(one: Any, triggers: Any) -> Tag:
    begin, end, schema = one["begin"], one["end"], one.get("schema", {})
    trigger = next((text for text in triggers if isinstance(text, str) and text and begin.startswith(text)), None)
    if trigger is None:
        raise refusal(f"structural_tag has the begin {begin!r:.80}, which starts with none of its triggers")
    if not isinstance(end, str) or not isinstance(schema, dict):
        raise TypeError
    return Tag(trigger=trigger, begin=begin, schema=schema, end=end)


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise refusal(f"structural_tag must be {SHAPE}") from None
