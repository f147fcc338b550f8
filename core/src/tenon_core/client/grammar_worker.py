"""The process that checks one request's grammar after another: `python -m tenon_core.client.grammar_worker`."""

from __future__ import annotations

from typing import Any

from tenon_core.client.worker_frames import Answer, work


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Nothing, or what is wrong with the grammar, in words that are safe to show."""
    import msgspec

    from tenon_core.sampling.grammar import check
    from tenon_core.sampling.structured import StructuredOutputs
    from tenon_platforms.errors import RequestError

    try:
        check(msgspec.convert(request["wanted"], StructuredOutputs))
    except RequestError as error:
        return {"error": error.message}
    except (MemoryError, RecursionError):
        return {"error": "the grammar took too much memory to compile"}
    return {}


def begin(start: dict[str, Any]) -> tuple[Answer | None, dict[str, Any]]:
    """Import what compiles."""
    import tenon_core.sampling.grammar  # noqa: F401 - so that no request pays for it

    return answer, {}


if __name__ == "__main__":
    work(begin)
