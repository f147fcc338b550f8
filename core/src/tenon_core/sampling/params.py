"""`SamplingParams`: how one request wants its tokens chosen. The field names are the ones this field's users know.

Checks that need no model happen here, at construction; checks against a model's facts (vocabulary, context, platform)
are in `validate.py`. Ceilings live in one table, `CEILINGS`, so that a test can be generated from it.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from tenon_platforms.errors import RequestError

from .rules import ThinkingLimit, Words
from .structured import StructuredOutputs, is_unicode

# Field -> (least, greatest). Both inclusive. A list's entry bounds its length.
CEILINGS: dict[str, tuple[float, float]] = {
    "n": (1, 128),
    "temperature": (0.0, 100.0),
    "top_k": (-1, 2**31 - 1),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-3, 100.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "seed": (-(2**63), 2**64 - 1),
    "max_tokens": (1, 2**31 - 1),
    "min_tokens": (0, 2**31 - 1),
    "logprobs": (0, 20),
    "prompt_logprobs": (0, 20),
    "beam_width": (0, 16),
    "length_penalty": (-10.0, 10.0),
}
LENGTH_CEILINGS: dict[str, int] = {
    "stop": 64,
    "stop_token_ids": 256,
    "logit_bias": 1024,
    "allowed_token_ids": 4096,
    "bad_words": 128,
}
MAX_STOP_CHARACTERS = 1024
MAX_WORD_CHARACTERS = 256
GREEDY_BELOW = 1e-5  # temperatures below this are greedy: dividing by them would overflow float32 logits


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling parameters of one request; raises `RequestError` naming the field when a value is out of range.

    `max_tokens=None` means "to the end of the context". `seed=None` draws one at submission; the same seed gives the
    same noise whatever else is in the batch. `top_k` of 0 or -1 is off. `logprobs=k` returns the chosen token's and
    the k best log-probabilities; `prompt_logprobs` likewise for the prompt. `structured_outputs` wins over `min_tokens`
    and `ignore_eos` where its grammar allows nothing more.

    `bad_words` are never completed, at a text's begin or after a space; `bad_word_ids` are their tokens, filled in by
    whoever has the tokenizer. `thinking` limits what is thought, whose marks its maker knows.

    `beam_width` above 0 searches with so many beams instead of sampling and gives the `n` best texts, scored by the sum
    of log-probabilities over length to the power of `length_penalty`. `early_stopping`: True ends as soon as there are
    `beam_width` finished texts, False when no running beam is better than them at its length, "never" when none can
    become better.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputs | None = None
    bad_words: tuple[str, ...] = ()
    bad_word_ids: Words = ()
    thinking: ThinkingLimit | None = None
    beam_width: int = 0
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids", "allowed_token_ids", "bad_words"):
            value: Any = getattr(self, name)
            if isinstance(value, str):
                value = (value,)
            if isinstance(value, (list, tuple)):
                msgspec.structs.force_setattr(self, name, tuple(value))
            elif value is not None:
                raise RequestError(f"{name} is {value!r:.80}: expected a list", param=name)
        for name, (least, greatest) in CEILINGS.items():
            _check_number(name, getattr(self, name), least, greatest)
        for name, longest in LENGTH_CEILINGS.items():
            _check_length(name, getattr(self, name), longest)
        for text in self.stop:
            if not isinstance(text, str) or not 0 < len(text) <= MAX_STOP_CHARACTERS or not is_unicode(text):
                raise RequestError(
                    f"stop holds {text!r:.80}: each stop string needs 1 to {MAX_STOP_CHARACTERS} characters",
                    param="stop",
                )
            if not is_unicode(text):
                raise RequestError(f"stop holds {text!a:.80}: a lone surrogate is no Unicode character", param="stop")
        for text in self.bad_words:
            if not isinstance(text, str) or not 0 < len(text) <= MAX_WORD_CHARACTERS or not text.strip():
                raise RequestError(
                    f"bad_words holds {text!r:.80}: each needs 1 to {MAX_WORD_CHARACTERS} characters, not all of them"
                    " space",
                    param="bad_words",
                )
        if not isinstance(self.logit_bias, dict):
            raise RequestError(
                f"logit_bias is {self.logit_bias!r:.80}: expected a map of ids to numbers", param="logit_bias"
            )
        for token, bias in self.logit_bias.items():
            if not (isinstance(bias, (int, float)) and math.isfinite(bias) and -100 <= bias <= 100):
                raise RequestError(
                    f"logit_bias[{token}] is {bias!r}: a bias lies between -100 and 100", param="logit_bias"
                )
        if not isinstance(self.structured_outputs, (StructuredOutputs, type(None))):
            raise RequestError(
                f"structured_outputs is {self.structured_outputs!r:.80}: expected StructuredOutputs",
                param="structured_outputs",
            )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens is {self.min_tokens}, more than max_tokens ({self.max_tokens})", param="min_tokens"
            )
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError("allowed_token_ids is empty: no token could be chosen", param="allowed_token_ids")

        if self.beam_width:
            self._check_beams()

    def _check_beams(self) -> None:
        """Raise `RequestError` for what beams cannot be combined with."""
        if self.n > self.beam_width:
            raise RequestError(f"n is {self.n}: a search of {self.beam_width} beams has no more texts", param="n")
        if not (isinstance(self.early_stopping, bool) or self.early_stopping == "never"):
            raise RequestError(
                f"early_stopping is {self.early_stopping!r:.80}: expected true, false or 'never'",
                param="early_stopping",
            )
        if self.temperature not in (0.0, 1.0):
            raise RequestError("temperature does nothing in a beam search: leave it out", param="temperature")
        asked = {
            "top_k": self.top_k > 0,
            "top_p": self.top_p < 1,
            "min_p": self.min_p > 0,
            "repetition_penalty": self.repetition_penalty != 1.0,
            "presence_penalty": self.presence_penalty != 0.0,
            "frequency_penalty": self.frequency_penalty != 0.0,
            "min_tokens": self.min_tokens > 0,
            "stop": bool(self.stop),
            "logit_bias": bool(self.logit_bias),
            "allowed_token_ids": self.allowed_token_ids is not None,
            "structured_outputs": self.structured_outputs is not None,
            "bad_words": bool(self.bad_words),
            "thinking_token_budget": self.thinking is not None,
        }
        for name, is_asked in asked.items():
            if is_asked:
                raise RequestError(f"{name} cannot be combined with beam search", param=name)

    @property
    def num_rows(self) -> int:
        """Sequences that run for it."""
        return self.beam_width or self.n

    @property
    def is_greedy(self) -> bool:
        """Whether the best logit wins and no noise is drawn."""
        return self.temperature < GREEDY_BELOW

    @property
    def needs_mask(self) -> bool:
        """Whether each token's choice depends on those before it, by a grammar or a rule."""
        return self.structured_outputs is not None or bool(self.bad_words) or self.thinking is not None

    @property
    def needs_penalties(self) -> bool:
        """Whether token counts must be kept for this request's rows."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


def _check_number(name: str, value: Any, least: float, greatest: float) -> None:
    if value is None and name in ("seed", "max_tokens", "logprobs", "prompt_logprobs"):
        return
    integral = name not in (
        "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
        "length_penalty",
    )  # fmt: skip
    if isinstance(value, bool) or not isinstance(value, int if integral else (int, float)):
        raise RequestError(f"{name} is {value!r:.80}: expected {'an integer' if integral else 'a number'}", param=name)
    if not least <= value <= greatest:  # also refuses NaN
        bounds = " and ".join(f"{one}" if isinstance(one, int) else f"{one:g}" for one in (least, greatest))
        raise RequestError(f"{name} is {value!r:.80}: it must lie between {bounds}", param=name)
    if name == "top_p" and value == 0.0:
        raise RequestError("top_p is 0: it must be greater than 0 and at most 1", param="top_p")


def _check_length(name: str, value: Any, longest: int) -> None:
    if value is not None and len(value) > longest:
        raise RequestError(f"{name} has {len(value)} entries: at most {longest} are allowed", param=name)
