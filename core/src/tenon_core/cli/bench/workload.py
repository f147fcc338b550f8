"""What a benchmark asks: prompts and output lengths, random from a seed or from a file, and when each is asked.

Files: `.jsonl` (an object a line with `prompt`, `question`, `text` or `turns`), `.json` (a list of such objects, or of
`conversations`), `.txt` (a prompt a line), `.csv` (a trace with the columns TIMESTAMP, ContextTokens, GeneratedTokens).
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tenon_platforms.errors import ConfigError

ID_RANGE = (100, 1000)  # ids that are ordinary tokens in every vocabulary we know
TEXT_KEYS = ("prompt", "question", "text", "instruction")
FORMATS = (".jsonl", ".json", ".txt", ".csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request. prompt: text, or token ids. output_len: most tokens to generate. at: seconds after the start."""

    prompt: str | list[int]
    output_len: int
    at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """How to make requests. spread: lengths vary by this share of themselves, 0 to 1. dataset: a file, or None.

    id_range: token ids of random prompts, [least, greatest). as_text: random prompts are words, about a token each.
    """

    num_prompts: int
    input_len: int
    output_len: int
    spread: float = 0.0
    seed: int = 0
    dataset: Path | None = None
    as_text: bool = False
    id_range: tuple[int, int] = ID_RANGE

    def asks(self) -> list[Ask]:
        """All requests, the same for the same seed. Raises `ConfigError` for a file that cannot be used."""
        generator = random.Random(self.seed)
        if self.dataset is None:
            return [self._random(generator, self.input_len, self.output_len) for _ in range(self.num_prompts)]
        found = list(self._from_file(self.dataset, generator))
        if not found:
            raise ConfigError(f"{self.dataset} holds no prompts")
        return [found[index % len(found)] for index in range(self.num_prompts)]

    def _random(self, generator: random.Random, input_len: int, output_len: int, at: float | None = None) -> Ask:
        length, output = (self._varied(generator, value) for value in (input_len, output_len))
        ids = [generator.randrange(*self.id_range) for _ in range(length)]
        prompt: str | list[int] = " ".join(f"w{number}" for number in ids) if self.as_text else ids
        return Ask(prompt=prompt, output_len=output, at=at)

    def _varied(self, generator: random.Random, value: int) -> int:
        return max(1, round(value * generator.uniform(1 - self.spread, 1 + self.spread))) if self.spread else value

    def _from_file(self, path: Path, generator: random.Random) -> Iterator[Ask]:
        if path.suffix not in FORMATS:
            raise ConfigError(f"dataset {path} has suffix {path.suffix!r}: expected one of {', '.join(FORMATS)}")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"dataset {path} cannot be read: {error}") from error
        if path.suffix == ".csv":
            yield from self._trace(path, text, generator)
            return
        for prompt in _prompts(path, text):
            yield Ask(prompt=prompt, output_len=self.output_len)

    def _trace(self, path: Path, text: str, generator: random.Random) -> Iterator[Ask]:
        """Requests of the trace's lengths at the trace's times, from its first."""
        first: float | None = None
        for number, row in enumerate(csv.DictReader(text.splitlines()), 2):
            try:
                stamp = _seconds(row["TIMESTAMP"])
                sizes = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            except (KeyError, ValueError, TypeError) as error:
                raise ConfigError(
                    f"{path} line {number} is no trace entry ({type(error).__name__}: {error}): expected the columns"
                    " TIMESTAMP, ContextTokens, GeneratedTokens"
                ) from error
            first = stamp if first is None else first
            yield self._random(generator, max(sizes[0], 1), max(sizes[1], 1), at=stamp - first)


def _prompts(path: Path, text: str) -> Iterator[str]:
    if path.suffix == ".txt":
        yield from (line for line in text.splitlines() if line.strip())
        return
    try:
        items = (
            [json.loads(line) for line in text.splitlines() if line.strip()]
            if path.suffix == ".jsonl"
            else json.loads(text)
        )
    except ValueError as error:
        raise ConfigError(f"dataset {path} is not valid JSON: {error}") from error
    if not isinstance(items, list):
        raise ConfigError(f"dataset {path} is no list of objects")
    for index, item in enumerate(items):
        prompt = _prompt_of(item)
        if prompt is None:
            raise ConfigError(
                f"dataset {path} entry {index} has no prompt: expected one of {', '.join(TEXT_KEYS)}, turns,"
                " conversations"
            )
        yield prompt


def _prompt_of(item: Any) -> str | None:
    if isinstance(item, str):
        return item
    if not isinstance(item, dict):
        return None
    for key in TEXT_KEYS:
        value = item.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and value and isinstance(value[0], str):
            return value[0]
    turns = item.get("turns")
    if isinstance(turns, list) and turns and isinstance(turns[0], str):
        return turns[0]
    talk = item.get("conversations")
    if isinstance(talk, list) and talk and isinstance(talk[0], dict) and isinstance(talk[0].get("value"), str):
        value = talk[0]["value"]
        return str(value)
    return None


def _seconds(stamp: str) -> float:
    """A number, or a date and time with up to seven digits of a second, in seconds."""
    try:
        return float(stamp)
    except ValueError:
        whole, _, fraction = stamp.partition(".")
        return datetime.fromisoformat(whole).timestamp() + (float(f"0.{fraction}") if fraction else 0.0)
