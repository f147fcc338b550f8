"""The process that renders one chat template: `python -m tenon_core.client.template_worker`.

Length-prefixed JSON on standard input and output. The first frame brings the template and the limits; it is compiled
once. The process limits its own memory, ends itself when a rendering takes too long (so it cannot outlive a parent that
died), and is killed and replaced by its parent at the time limit.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
from typing import Any, BinaryIO

HEADER = struct.Struct("!I")
MAX_FRAME = 64 * 2**20
SELF_KILL_MARGIN_S = 1.0


def read_frame(stream: BinaryIO) -> dict[str, Any] | None:
    """One message, or None at the end of the stream or where it is none."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (length,) = HEADER.unpack(header)
    if length > MAX_FRAME:
        return None
    body = stream.read(length)
    if len(body) < length:
        return None
    value = json.loads(body)
    return value if isinstance(value, dict) else None


def write_frame(stream: BinaryIO, value: dict[str, Any]) -> None:
    """Send one message."""
    body = json.dumps(value).encode("ascii")
    stream.write(HEADER.pack(len(body)) + body)
    stream.flush()


def limit_memory(num_bytes: int) -> None:
    """Cap this process's address space, where the system can."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return
    try:
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
    except (OSError, ValueError):  # refused, as some systems do: the time limit still holds
        return


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


def main() -> None:
    """Compile, then render until the parent closes the pipe."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing but frames goes to the parent
    start = read_frame(source)
    if start is None:
        return
    limit_memory(int(start["memory_bytes"]))
    template, reply = compile_template(str(start["template"]))
    write_frame(sink, reply)
    if template is None:
        return
    seconds = float(start["seconds"]) + SELF_KILL_MARGIN_S
    while (request := read_frame(source)) is not None:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, seconds)  # the default action of its signal ends the process
        reply = answer(template, request, int(start["max_characters"]))
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        write_frame(sink, reply)


if __name__ == "__main__":
    main()
