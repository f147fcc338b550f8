"""The process that checks one request's grammar after another: `python -m tenon_core.client.grammar_worker`."""

from __future__ import annotations

from typing import Any

from tenon_core.client.worker_frames import Answer, work


def begin(start: dict[str, Any]) -> tuple[Answer | None, dict[str, Any]]:
    """Import what compiles, and load the vocabulary over which it does, so that no request pays for it.

    start: `backend`, the library; `vocabulary`, what `Vocabulary.of` takes, or None for bytes.
    """
    import msgspec

    from tenon_core.sampling.grammar import Vocabulary, check
    from tenon_core.sampling.structured import StructuredOutputs
    from tenon_platforms.errors import TenonError

    backend, given = start["backend"], start.get("vocabulary")
    vocabulary = None if given is None else Vocabulary.of(**given, backend=backend)
    if backend == "xgrammar":
        check(StructuredOutputs(json_object=True), backend, vocabulary)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        """Nothing, or what is wrong with the grammar, in words that are safe to show."""
        try:
            check(msgspec.convert(request["wanted"], StructuredOutputs), backend, vocabulary)
        except TenonError as error:
            return {"error": error.message}
        except (MemoryError, RecursionError):
            return {"error": "the grammar took too much memory to compile"}
        return {}

    return answer, {}


if __name__ == "__main__":
    work(begin)
