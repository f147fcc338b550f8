"""A conversation with an engine in this process: messages in, pieces of the answer out as they come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType

from tenon_core.client.conversation import Conversation
from tenon_core.client.detokenizer import TokenBytes
from tenon_core.client.generation import ActiveRequest, Generation
from tenon_core.client.inline import InlineLink
from tenon_core.client.model_files import open_model_files
from tenon_core.client.templates import ChatTemplate
from tenon_core.config import EngineConfig
from tenon_core.sampling.params import SamplingParams
from tenon_platforms.errors import ConfigError


@dataclass(slots=True, kw_only=True)
class Talk:
    """One conversation. messages: what was said, the last answer included; a stopped answer counts as it stands."""

    link: InlineLink
    generation: Generation
    conversation: Conversation
    params: SamplingParams
    messages: list[dict[str, str]] = field(default_factory=list)
    _last: ActiveRequest | None = None

    @classmethod
    def start(
        cls, config: EngineConfig, params: SamplingParams, *, system: str | None = None, template: str | None = None
    ) -> Talk:
        """Start the engine. template: a file of the operator's. Raises `TenonError`."""
        files = open_model_files(config, template=template)
        if files.chat_template is None:
            raise ConfigError(
                f"model {config.model.model!r} has no chat template", remedy="pass --chat-template FILE with one"
            )
        conversation = Conversation(tokenizer=files.tokenizer, template=ChatTemplate(source=files.chat_template))
        try:
            link = InlineLink.start(config)
        except BaseException:
            conversation.close()
            raise
        vocabulary = TokenBytes(backend=files.tokenizer.backend)
        generation = Generation(link=link, vocabulary=vocabulary, seed=config.platform.seed)
        talk = cls(link=link, generation=generation, conversation=conversation, params=params)
        talk.reset(system=system)
        return talk

    def reset(self, *, system: str | None = None) -> None:
        """Begin anew. Without a system message the one before stays."""
        kept = [message for message in self.messages if message["role"] == "system"]
        self.messages = kept if system is None else [{"role": "system", "content": system}]

    def ask(self, text: str) -> Iterator[str]:
        """The answer's pieces. Closing the iterator early, or an interrupt, ends the answer where it is."""
        asked = [*self.messages, {"role": "user", "content": text}]
        prompt, ids = self.conversation.encode(asked, add_generation_prompt=True, variables={})
        request = self._last = self.generation.start(ids, self.params, prompt=prompt, is_watched=True)
        self.messages = asked
        said: list[str] = []
        try:
            while not request.is_done:
                update = self.link.step()
                if update is not None:
                    self.generation.take(update)
                piece = request.samples[0].take_delta().text
                if piece:
                    said.append(piece)
                    yield piece
        finally:
            self.generation.abort(request)
            while self.link.has_work():  # so that the next question finds everything free
                self.link.step()
            self.messages.append({"role": "assistant", "content": "".join(said)})
        if request.error is not None:
            raise request.error

    def last_line(self) -> str:
        """Tokens and speed of the last answer."""
        request = self._last
        if request is None or request.metrics.first_token_time is None:
            return "no token came"
        output, metrics = request.output, request.metrics
        count, first, last = len(output.outputs[0].token_ids), metrics.first_token_time, metrics.last_token_time
        assert first is not None
        line = (
            f"{len(output.prompt_token_ids)} tokens in, {count} out, first after {first - metrics.arrival_time:.2f} s"
        )
        return line if last is None or last <= first else f"{line}, then {(count - 1) / (last - first):.1f} a second"

    def __enter__(self) -> Talk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.conversation.close()
        self.link.shutdown()
