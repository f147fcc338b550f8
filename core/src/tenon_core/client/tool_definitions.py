"""A request's tools, checked.

Each is `{"type": "function", "function": {"name", "description", "parameters"}}`, as in OpenAI's API."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tenon_platforms.errors import RequestError

MAX_TOOLS = 512
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


def checked_tools(tools: Sequence[Any]) -> dict[str, Mapping[str, Any]]:
    """Schemas of parameters by the tools' names. Raises `RequestError` naming what is wrong."""
    if not isinstance(tools, (list, tuple)):
        raise _refusal(f"tools is {tools!r:.80}: expected a list")
    if len(tools) > MAX_TOOLS:
        raise _refusal(f"{len(tools)} tools: at most {MAX_TOOLS} are allowed")
    found: dict[str, Mapping[str, Any]] = {}
    for place, tool in enumerate(tools):
        name, parameters = _function(f"tools[{place}]", tool)
        if name in found:
            raise _refusal(f"tools[{place}] is the second one named {name!r}: names must differ")
        found[name] = parameters
    return found


def _function(where: str, tool: Any) -> tuple[str, Mapping[str, Any]]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or tool.get("type") != "function" or not isinstance(function, Mapping):
        raise _refusal(f'{where} is {tool!r:.80}: expected {{"type": "function", "function": {{"name": ...}}}}')
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _refusal(f"{where}.function.name is {name!r:.80}: expected at most 128 letters, digits and _ - . : /")
    if description is not None and not isinstance(description, str):
        raise _refusal(f"{where}.function.description is {description!r:.80}: expected text")
    return name, _parameters(f"{where}.function.parameters", function.get("parameters"))


def _parameters(where: str, parameters: Any) -> Mapping[str, Any]:
    if parameters is None:
        return {}
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise _refusal(f"{where} is {parameters!r:.80}: expected a JSON schema of an object")
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    if not isinstance(properties, Mapping) or not all(isinstance(one, (Mapping, bool)) for one in properties.values()):
        raise _refusal(f"{where}.properties is {properties!r:.80}: expected schemas by name")
    if not isinstance(required, list) or not all(isinstance(one, str) for one in required):
        raise _refusal(f"{where}.required is {required!r:.80}: expected a list of names")
    return parameters


def _refusal(message: str) -> RequestError:
    return RequestError(message, param="tools")
