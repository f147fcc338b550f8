"""`StructuredOutputs`: what a request's output must look like, as data. Compiling it is `grammar.py`'s.

One of the fields is given. Their names are those that this field's servers share (`structured_outputs` of a request);
OpenAI's `response_format` is translated into them. Knows no grammar library.
"""

from __future__ import annotations

import json as json_text
from typing import Any

import msgspec

from tenon_platforms.errors import RequestError

PARAM = "structured_outputs"
MAX_TEXT = 256 * 1024  # characters of a schema, expression or grammar
MAX_CHOICES = 1024
MAX_CHOICE_CHARACTERS = 4096
MAX_DEPTH = 64  # of a schema
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of: json (a JSON schema's text), regex (the whole output matches), choice (one of these texts),
    grammar (Lark or GBNF), json_object (any JSON object), structural_tag (a JSON text: free text in which tags hold
    schemas). disable_any_whitespace: JSON without optional white space. Raises `RequestError`.
    """

    json: str | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None
    disable_any_whitespace: bool = False

    def __post_init__(self) -> None:
        given = [name for name in KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise refusal(f"has {', '.join(given) or 'nothing'}: give exactly one of {', '.join(KINDS)}")
        for name in ("json", "regex", "grammar", "structural_tag"):
            value: Any = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
                raise refusal(f"{name} must be a text of 1 to {MAX_TEXT} characters")
            if not is_unicode(value):
                raise refusal(f"{name} holds a lone surrogate, which is no Unicode text")
        if self.choice is not None:
            self._check_choice(self.choice)

    def _check_choice(self, choice: Any) -> None:
        if not isinstance(choice, (list, tuple)) or not 0 < len(choice) <= MAX_CHOICES:
            raise refusal(f"choice must be a list of 1 to {MAX_CHOICES} texts")
        for text in choice:
            if not isinstance(text, str) or not 0 < len(text) <= MAX_CHOICE_CHARACTERS or not is_unicode(text):
                raise refusal(f"choice holds {text!r:.80}: each is a text of 1 to {MAX_CHOICE_CHARACTERS} characters")
        msgspec.structs.force_setattr(self, "choice", tuple(choice))

    @property
    def kind(self) -> str:
        """Which field is given."""
        return next(name for name in KINDS if getattr(self, name) not in (None, False))


def schema_text(schema: Any, *, param: str = PARAM) -> str:
    """A JSON schema, given as an object or as its text, as text. Raises `RequestError` where it is none."""
    value = schema
    if isinstance(schema, str):
        if len(schema) > MAX_TEXT:
            raise RequestError(f"the JSON schema has more than {MAX_TEXT} characters", param=param)
        try:
            value = json_text.loads(schema)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the JSON schema is no JSON: {str(error)[:200]}", param=param) from None
    if not isinstance(value, (dict, bool)):
        raise RequestError(f"the JSON schema is {value!r:.80}: expected an object", param=param)
    _check_depth(value, param)
    try:
        text = json_text.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the JSON schema is not usable: {str(error)[:200]}", param=param) from None
    if len(text) > MAX_TEXT:
        raise RequestError(f"the JSON schema has more than {MAX_TEXT} characters", param=param)
    return text


def parsed(schema: str) -> Any:
    """A JSON schema's text as a value. Raises `RequestError` where it is none, or too deep to look at."""
    try:
        value = json_text.loads(schema)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the JSON schema is no JSON: {str(error)[:200]}", param=PARAM) from None
    _check_depth(value, PARAM)
    return value


def _check_depth(value: Any, param: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for one in level
            if isinstance(one, (dict, list))
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    raise RequestError(f"the JSON schema is nested more than {MAX_DEPTH} levels deep", param=param)


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def refusal(why: str) -> RequestError:
    """An error about the field."""
    return RequestError(f"{PARAM} {why}", param=PARAM)
