"""One sample of a request while it runs: its tokens, its text, the stop strings it looks for, its log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tenon_core.engine.messages import Finished, FinishReason, TokenLogprobs
from tenon_core.sampling.params import SamplingParams

from .detokenizer import Detokenizer, TokenBytes
from .outputs import CompletionOutput, Logprob, PositionLogprobs
from .stop_scanner import StopScanner


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDelta:
    """What is new of one sample since it was last asked.

    parts: the text token by token, as long as the sample is watched and has log-probabilities; held back text may
    follow.
    """

    index: int
    text: str
    parts: list[str]
    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    finish_reason: str | None
    stop_reason: int | str | None


@dataclass(slots=True, kw_only=True)
class Sample:
    """Fed by `Generation`. Tokens of samples without stop strings that nobody watches are turned to text at the end."""

    key: int
    params: SamplingParams
    output: CompletionOutput
    vocabulary: TokenBytes | None  # None: no text is made
    is_watched: bool
    prompt_token_ids: Sequence[int] = ()
    shown_ids: frozenset[int] = frozenset()  # special tokens whose text is wanted, as parsers look for it
    position_logprobs: list[TokenLogprobs] = field(default_factory=list)
    _detokenizer: Detokenizer | None = field(init=False)
    _scanner: StopScanner | None = field(init=False)
    _parts: list[str] = field(default_factory=list)
    _num_made: int = 0  # tokens that were turned to text
    _told_parts: int = 0
    _told_tokens: int = 0

    def __post_init__(self) -> None:
        params, vocabulary = self.params, self.vocabulary
        self._detokenizer = (
            None
            if vocabulary is None
            else vocabulary.detokenizer(
                skip_special_tokens=params.skip_special_tokens, shown_ids=self.shown_ids, before=self.prompt_token_ids
            )
        )
        self._scanner = (
            StopScanner(stops=params.stop, include=params.include_stop_str_in_output) if params.stop else None
        )

    @property
    def is_finished(self) -> bool:
        """Whether it has ended."""
        return self.output.finish_reason is not None

    @property
    def num_untold(self) -> int:
        """Tokens that came since the last delta."""
        return len(self.output.token_ids) - self._told_tokens

    def add(self, token: int, logprobs: TokenLogprobs | None, *, is_stop_token: bool) -> bool:
        """Take a token in; True where a stop string was completed and the engine must be told.

        A token that ended the sequence has no text, unless it is wanted in the output.
        """
        self.output.token_ids.append(token)
        if logprobs is not None:
            self.position_logprobs.append(logprobs)
        if is_stop_token and not self.params.include_stop_str_in_output:
            return False
        if self._scanner is None and not self.is_watched:
            return False
        return self._make_text(len(self.output.token_ids))

    def _make_text(self, end: int) -> bool:
        """Turn the tokens before place `end` into text; True where a stop string ended it."""
        if self._detokenizer is None:
            return False
        ids = self.output.token_ids
        for place in range(self._num_made, end):
            self._num_made = place + 1
            if self._show(self._detokenizer.push(ids[place]), num_tokens=place + 1):
                return True
        return False

    def _show(self, text: str, *, num_tokens: int) -> bool:
        scanner = self._scanner
        if scanner is not None and num_tokens > self.params.min_tokens:
            text = scanner.feed(text)
        if text or self.params.logprobs is not None:  # with these, every token has its part
            self._parts.append(text)
        if scanner is not None and scanner.matched is not None:
            self._end(FinishReason.STOP.text, scanner.matched)
            return True
        return False

    def finish(self, end: Finished) -> None:
        """The engine says that it has ended."""
        if self.is_finished:
            return
        if self._detokenizer is not None:
            ids = self.output.token_ids
            has_silent_end = bool(ids) and ids[-1] == end.stop_token and not self.params.include_stop_str_in_output
            if self._make_text(len(ids) - has_silent_end):
                return
            if has_silent_end and self.params.logprobs is not None:
                self._parts.append("")
            if self._show(self._detokenizer.flush(), num_tokens=len(self.output.token_ids)):
                return
            if self._scanner is not None:
                self._parts.append(self._scanner.flush())
        is_own = end.stop_token >= 0 and end.stop_token in self.params.stop_token_ids
        self._end(FinishReason(end.reason).text, end.stop_token if is_own else None)

    def _end(self, reason: str, stop_reason: int | str | None) -> None:
        output = self.output
        output.finish_reason, output.stop_reason = reason, stop_reason
        output.text = "".join(self._parts)
        if self.params.logprobs is not None:
            output.cumulative_logprob = sum(one.logprob for one in self.position_logprobs)
            output.logprobs = [readable(one, self.vocabulary) for one in self.position_logprobs]

    def take_delta(self) -> SampleDelta:
        """What is new since the last call."""
        output, parts = self.output, self._parts
        logprobs = self.position_logprobs[self._told_tokens :] if self.position_logprobs else []
        delta = SampleDelta(
            index=output.index,
            text="".join(parts[self._told_parts :]),
            parts=parts[self._told_parts :] if self.params.logprobs is not None else [],
            token_ids=output.token_ids[self._told_tokens :],
            logprobs=logprobs,
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
        )
        self._told_parts, self._told_tokens = len(parts), len(output.token_ids)
        return delta


def readable(logprobs: TokenLogprobs, vocabulary: TokenBytes | None) -> PositionLogprobs:
    """One position by token id, with the tokens' own texts; the chosen token first."""

    def one(token: int, logprob: float, rank: int) -> Logprob:
        text = None if vocabulary is None else vocabulary.text(token)
        return Logprob(logprob=logprob, rank=rank, decoded_token=text)

    found = {logprobs.token_id: one(logprobs.token_id, logprobs.logprob, logprobs.rank)}
    for place, (token, logprob) in enumerate(zip(logprobs.top_ids, logprobs.top_logprobs, strict=True)):
        found.setdefault(token, one(token, logprob, place + 1))
    return found
