"""The process that renders one chat template: `python -m tenon_core.client.template_worker`.

The first message brings the template, which is compiled once, and the limits; every further one is rendered. The parent
kills and replaces the process at the time limit (`worker_process.py`).
"""

from __future__ import annotations

from typing import Any

from tenon_core.client.worker_frames import Answer, work


class OutputTooLongError(Exception):
    """The rendered text passed its cap."""


def render(template: Any, variables: dict[str, Any], max_characters: int) -> str:
    """The rendered text, given up as soon as it is too long."""
    pieces, length = [], 0
    for piece in template.generate(**variables):
        length += len(piece)
        if length > max_characters:
            raise OutputTooLongError
        pieces.append(piece)
    return "".join(pieces)


def answer(template: Any, request: dict[str, Any], max_characters: int) -> dict[str, Any]:
    """One rendering: its text, or what went wrong in words that are safe to show."""
    from jinja2.exceptions import SecurityError, TemplateError

    try:
        return {"text": render(template, request["variables"], max_characters)}
    except OutputTooLongError:
        return {"error": f"the rendered text passes {max_characters} characters"}
    except MemoryError:
        return {"error": "rendering took too much memory"}
    except RecursionError:
        return {"error": "the template calls itself too deeply"}
    except SecurityError:
        return {"error": "the template asks for something that the sandbox forbids"}
    except TemplateError as error:
        return {"error": str(error.message or type(error).__name__)[:500]}
    except Exception as error:  # noqa: BLE001 - a stranger's code may raise anything; only the kind is told
        return {"error": f"{type(error).__name__} while rendering"}


def compile_template(source: str) -> tuple[Any, dict[str, Any]]:
    """(template, reply): the reply names what a request may set, or the error."""
    from jinja2 import meta
    from jinja2.exceptions import TemplateSyntaxError

    from tenon_core.client.template_environment import GIVEN_NAMES, make_environment

    environment = make_environment()
    try:
        names = meta.find_undeclared_variables(environment.parse(source)) - GIVEN_NAMES
        return environment.from_string(source), {"names": sorted(names)}
    except TemplateSyntaxError as error:
        return None, {"error": f"{error.message} (line {error.lineno})"}
    except (RecursionError, MemoryError):
        return None, {"error": "the template is nested too deeply"}
    except Exception as error:  # noqa: BLE001 - the compiler meets a stranger's text
        return None, {"error": f"{type(error).__name__}: {error}"[:500]}


def begin(start: dict[str, Any]) -> tuple[Answer | None, dict[str, Any]]:
    """Compile the template of the first message."""
    template, reply = compile_template(str(start["template"]))
    if template is None:
        return None, reply
    most = int(start["max_characters"])
    return lambda request: answer(template, request, most), reply


if __name__ == "__main__":
    work(begin)
