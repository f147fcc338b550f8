"""What may not change tokens: everything an engine can do or leave, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tenon_platforms.capabilities import Determinism
from tenon_platforms.pools import Pool

from ...engines import Engine, prompts_of, running
from ...models.store import ModelStore
from ...profile import Profile
from ...registry import Case, Check, ConformanceError, NotApplicableError
from ...subject import Subject
from ...truth.equality import Reference, sampled_reference
from .comparing import check_compiles, generate, needs_float32, same_tokens

MODELS = ("llama", "gemma3")  # one layer group; several, with windows
LENGTHS = (1, 5, 17, 33, 48, 64, 100, 150)
FLAGS: dict[str, dict[str, Any]] = {
    "no-overlap": {"overlap": False},
    "chunks-of-16": {"max_num_batched_tokens": 16},
    "no-prefix-cache": {"enable_prefix_caching": False},
    "no-chunking": {"enable_chunked_prefill": False},
    "two-rows": {"max_num_seqs": 2},
    "eager": {"enforce_eager": True},
}
HOT = 6.0  # a temperature at which wide logits leave a choice
Prompts = list[list[int]]


def flags(subject: Subject, profile: Profile, case: Case) -> None:
    """One flag of the engine otherwise than by default."""
    needs_float32(subject)
    name, flat = case.value
    store = ModelStore.of(subject)
    model = store.tiny(name)
    prompts = prompts_of(LENGTHS, seed=profile.seed)
    found = generate(subject, model.path, prompts, new=20, **flat)
    same_tokens(found, store.reference(model.path, model.model), prompts, f"{name}, {case.id}")


def prefix_hits(engine: Engine, reference: Reference, seed: int) -> None:
    """Prompts that begin alike: computed once, and again from the cache."""
    shared, *tails = prompts_of((96, 1, 20, 50), seed=seed)
    prompts = [shared + tail for tail in tails]
    size = engine.link.facts.block_size
    same_tokens(engine.generate(prompts[:1]), reference, prompts[:1], "first")
    same_tokens(engine.generate(prompts, first_id=10), reference, prompts, "from the prefix cache")
    if 96 // size and not all(engine.cached[10 + place, 0] == 96 // size * size for place in range(len(prompts))):
        raise ConformanceError(f"of 96 shared tokens {[engine.cached[10 + i, 0] for i in range(3)]} were cached")
    engine.link.reset_prefix_cache()
    same_tokens(engine.generate(prompts[:1], first_id=30), reference, prompts[:1], "after a reset")
    if engine.cached[30, 0]:
        raise ConformanceError("after reset_prefix_cache a prompt was still found in the cache")


def forks(engine: Engine, reference: Reference, seed: int) -> None:
    """Samples of one prompt share its blocks and go on alone: the same tokens, and tokens that part at once."""
    for number, length in enumerate((1, 37, 48)):
        (prompt,) = prompts_of((length,), seed=seed + length)
        engine.submit(number, prompt, n=3, max_tokens=20)
        engine.run()
        found = [engine.tokens[number, sample] for sample in range(3)]
        same_tokens(found, reference, [prompt] * 3, f"samples that share a prompt of {length}")
        engine.submit(10 + number, prompt, n=3, max_tokens=20, temperature=HOT, seed=seed)
        engine.run()
        parted = [engine.tokens[10 + number, sample] for sample in range(3)]
        if length > 1 and not parted[0] != parted[1] != parted[2]:
            raise ConformanceError(f"three samples at temperature {HOT} are the same: {parted[0]}")
        for sample, tokens in enumerate(parted):
            drawn = sampled_reference(reference, seed=seed, sample=sample, temperature=HOT)
            label = f"sample {sample} of 3 at temperature {HOT}, which part in a shared block (seed {seed})"
            same_tokens([tokens], drawn, [prompt], label)


def late_arrivals(engine: Engine, reference: Reference, seed: int) -> None:
    """Requests that come while others run, in every phase of them."""
    prompts = prompts_of((40, 3, 70, 12, 55, 1), seed=seed)

    def arrive(step: int) -> None:
        if step % 3 == 1 and step // 3 + 1 < len(prompts):
            engine.submit(step // 3 + 1, prompts[step // 3 + 1], max_tokens=20)

    engine.submit(0, prompts[0], max_tokens=20)
    engine.run(arrive)
    found = [engine.tokens[place, 0] for place in range(len(prompts))]
    same_tokens(found, reference, prompts, "requests that came one by one")


def sampled_beside(engine: Engine, reference: Reference, seed: int) -> None:
    """Greedy requests beside such as sample, with penalties, biases and log-probabilities."""
    prompts = prompts_of((9, 40, 21), seed=seed)
    engine.submit(50, prompts[0], temperature=1.0, top_k=5, repetition_penalty=1.2, logit_bias={3: 2.0}, logprobs=2)
    engine.submit(51, prompts[1], temperature=0.7, top_p=0.8, presence_penalty=0.5, max_tokens=12)
    found = engine.generate(prompts, max_tokens=20)
    same_tokens(found, reference, prompts, "beside requests that sample")


TRICKS: dict[str, Callable[[Engine, Reference, int], None]] = {
    "prefix-hits": prefix_hits,
    "forks": forks,
    "late-arrivals": late_arrivals,
    "beside-sampling": sampled_beside,
}


def requests(subject: Subject, profile: Profile, case: Case) -> None:
    """What requests do to each other, on one engine."""
    needs_float32(subject)
    store = ModelStore.of(subject)
    model = store.tiny(case.value)
    reference = store.reference(model.path, model.model)
    with running(subject, model.path, max_num_batched_tokens=48) as engine:
        for trick in TRICKS.values():
            trick(engine, reference, profile.seed)
            engine.forget()
        check_compiles(subject, engine)


def preemption(subject: Subject, profile: Profile, case: Case) -> None:
    """Blocks for half of the requests: who is preempted and computed again gets the same tokens."""
    needs_float32(subject)
    store = ModelStore.of(subject)
    model = store.tiny("llama")
    prompts = prompts_of((9, 14, 11, 16), seed=profile.seed)
    with running(subject, model.path, max_model_len=64) as engine:
        size = engine.link.facts.block_size
    new = max(50, 2 * size)
    blocks = len(prompts) * -(-(16 + new) // size) // 2 + 2
    with running(subject, model.path, num_blocks=blocks, max_model_len=16 + new) as engine:
        found = engine.generate(prompts, max_tokens=new)
        if not engine.stats.num_preemptions:
            raise NotApplicableError(f"{blocks} blocks of {size} tokens were enough for all")
    same_tokens(found, store.reference(model.path, model.model), prompts, "preempted")


def sleep(subject: Subject, profile: Profile, case: Case) -> None:
    """Put to sleep in the midst of requests, and woken up: they end with the same tokens, as do those that came."""
    needs_float32(subject)
    store = ModelStore.of(subject)
    model = store.tiny(case.value)
    prompts = prompts_of((5, 20, 40, 9), seed=profile.seed)
    reference = store.reference(model.path, model.model)
    with running(subject, model.path, enable_sleep_mode=True) as engine:
        for pools in (tuple(Pool), (Pool.KV_CACHE,), (Pool.WEIGHTS,)):
            for place, prompt in enumerate(prompts[:3]):
                engine.submit(place, prompt, max_tokens=24)
            for _ in range(6):
                engine.step()
            engine.link.sleep(pools)
            engine.submit(3, prompts[3], max_tokens=24)
            _check_rest(engine)
            for pool in pools:
                engine.link.wake((pool,))
            engine.run()
            found = [engine.tokens[place, 0] for place in range(len(prompts))]
            same_tokens(found, reference, prompts, f"{case.value}, after {' and '.join(pools)} slept")
            engine.forget()
        check_compiles(subject, engine)


def _check_rest(engine: Engine) -> None:
    """An engine that sleeps tells what had landed, and runs nothing."""
    while engine.link.has_work():
        engine.step()
    before = engine.stats.num_steps
    for _ in range(3):
        if engine.step():
            raise ConformanceError("a token came from an engine that sleeps")
    if engine.stats.num_steps != before:
        raise ConformanceError("an engine that sleeps ran a step")
    engine.check()


def repeats(subject: Subject, profile: Profile, case: Case) -> None:
    """The same sampled requests on a fresh engine: the same tokens, and those of the contract's noise."""
    needs_float32(subject)
    if subject.capabilities.determinism is Determinism.NONE:
        raise NotApplicableError("it claims no determinism")
    store = ModelStore.of(subject)
    model = store.tiny("llama")
    prompts = prompts_of((3, 40, 17), seed=profile.seed)
    runs = []
    for _ in range(2):
        with running(subject, model.path) as engine:
            runs.append(engine.generate(prompts, temperature=HOT, max_tokens=24))
    for place, (first, second) in enumerate(zip(*runs, strict=True)):
        if first != second:
            raise ConformanceError(
                f"determinism {subject.capabilities.determinism.value} is claimed, but prompt {place} of {len(prompts)}"
                f" got {first} and on a fresh engine {second} [temperature {HOT}, seed {place}]"
            )
        drawn = sampled_reference(
            store.reference(model.path, model.model), seed=place, sample=0, temperature=HOT
        )  # a request's seed is its id
        same_tokens([first], drawn, prompts[place : place + 1], f"sampled with the contract's noise, seed {place}")


def batch_invariant(subject: Subject, profile: Profile, case: Case) -> None:
    """Bitwise the same tokens in any batch, where that is claimed."""
    needs_float32(subject)
    if subject.capabilities.determinism is not Determinism.BATCH:
        raise NotApplicableError("it does not claim results that are independent of the batch")
    path = ModelStore.of(subject).tiny(case.value).path
    prompts = prompts_of((3, 20, 50, 90), seed=profile.seed)
    with running(subject, path, batch_invariant=True, enable_prefix_caching=False) as engine:
        alone = [engine.generate([p], first_id=i, temperature=1.3, max_tokens=20)[0] for i, p in enumerate(prompts)]
        engine.forget()
        for place, other in enumerate(prompts_of((30, 7), seed=profile.seed + 3)):
            engine.submit(50 + place, other, n=2, temperature=0.7)
        together = engine.generate(prompts, temperature=1.3, max_tokens=20)
    if alone != together:
        wrong = [place for place in range(len(prompts)) if alone[place] != together[place]]
        place = wrong[0]
        raise ConformanceError(
            f"--batch-invariant: of {len(prompts)} prompts {wrong} got other tokens in another batch; prompt {place} of"
            f" {len(prompts[place])} tokens got {together[place]}, alone {alone[place]} [temperature 1.3, seed {place}]"
        )


def _flags(subject: Subject, profile: Profile) -> Iterable[Case]:
    for model in MODELS if profile.wide else MODELS[:1]:
        for name, flat in FLAGS.items():
            yield Case(id=f"{model}-{name}", value=(model, flat))


def _models(subject: Subject, profile: Profile) -> Iterable[Case]:
    return [Case(id=name, value=name) for name in (MODELS if profile.wide else MODELS[1:])]


CHECKS = (
    Check(level="L6", name="flags", what="the engine's flags change no token", cases=_flags, run=flags),
    Check(level="L6", name="requests", what="requests change no token of others", cases=_models, run=requests),
    Check(level="L6", name="preemption", what="preemption changes no token", run=preemption),
    Check(level="L6", name="sleep", what="sleep changes no token", cases=_models, run=sleep),
    Check(level="L6", name="repeats", what="two runs give the same tokens", run=repeats),
    Check(level="L6", name="batch_invariant", what="a batch changes no bit", cases=_models, run=batch_invariant),
)
