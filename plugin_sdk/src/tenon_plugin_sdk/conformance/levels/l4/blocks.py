"""The books of blocks: what is in use is what tokens need, whoever is aborted or preempted, and comes back."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import partial
from typing import Any

from tenon_platforms.errors import TenonError

from ...engines import Engine, prompts_of, running
from ...models.store import ModelStore
from ...profile import Profile
from ...registry import Case, Check, ConformanceError, NotApplicableError
from ...subject import Subject
from ...truth.equality import assert_greedy_equal

MODELS = {"one-group": "llama", "two-groups": "gemma3"}
MOST_GROUPS = {"llama": 1, "gemma3": 4}  # one for every layer, at most
STORMS = 4


def aborts(subject: Subject, profile: Profile, case: Case) -> None:
    """Storms of aborts, at any step and of anything: blocks come back, and those who stay get their tokens."""
    store = ModelStore.of(subject)
    model = store.tiny(case.value)
    reference = store.reference(model.path, model.model)
    prompts = prompts_of((5, 60, 130, 40, 8, 90, 17, 33, 2, 71), seed=profile.seed)
    with running(subject, model.path, num_blocks=96, max_num_batched_tokens=48) as engine:
        for storm in range(STORMS if profile.wide else 2):
            engine.forget()
            chance = random.Random(profile.seed * 100 + storm)
            first = 100 * storm
            for place, prompt in enumerate(prompts):
                engine.submit(first + place, prompt, max_tokens=24, n=1 + place % 3)
            kept = set(chance.sample(range(len(prompts)), 3))
            engine.run(partial(_storm, engine, kept, first, chance))
            for place in kept:
                ours = engine.tokens.get((first + place, 0), [])
                if len(ours) != 24:
                    raise ConformanceError(f"request {place} was not aborted, but got {len(ours)} of 24 tokens")
                _same(ours, reference, prompts[place], f"request {place} of abort storm {storm}")


def _storm(engine: Engine, kept: set[int], first: int, chance: random.Random, step: int) -> None:
    """Abort some by request, some by sample, some twice, some that never were; in the end all but the kept."""
    victims = [place for place in range(10) if place not in kept]
    some = victims if step == 20 else [place for place in victims if chance.random() < 0.06]
    ids = [first + place for place in some if chance.random() < 0.5]
    keys = [((first + place) << 16) | (place % 3) for place in some]
    engine.link.abort(ids=[*ids, *ids, 99_999], keys=keys if step != 20 else ())
    if step == 20:
        engine.link.abort(ids=[first + place for place in victims])


def accounting(subject: Subject, profile: Profile, case: Case) -> None:
    """Blocks in use are what the tokens need, at every step; none once the request has ended."""
    name, cached = case.value
    path = ModelStore.of(subject).tiny(name).path
    with running(subject, path, enable_prefix_caching=cached, num_blocks=80) as engine:
        facts, base = engine.link.facts, engine.stats
        if base.num_free_blocks != base.num_blocks:
            raise ConformanceError(f"{base.num_free_blocks} of {base.num_blocks} blocks are free before any request")
        groups = MOST_GROUPS[name]
        (prompt,) = prompts_of((70,), seed=profile.seed)
        for request_id, samples in ((1, 1), (2, 3)):
            engine.submit(request_id, prompt, max_tokens=40, n=samples)
            while engine.link.has_work():
                engine.step()
                engine.check()
                stats = engine.stats
                used = stats.num_blocks - stats.num_free_blocks
                longest = len(prompt) + 1 + max(len(engine.tokens.get((request_id, s), ())) for s in range(samples))
                most = samples * groups * (-(-(longest + 2) // facts.block_size) + 1)
                if used > most:
                    raise ConformanceError(
                        f"{used} blocks are in use for {samples} samples of {longest} tokens in blocks of"
                        f" {facts.block_size}: at most {most} are needed"
                    )
            if engine.stats.num_free_blocks != engine.stats.num_blocks:
                missing = engine.stats.num_blocks - engine.stats.num_free_blocks
                raise ConformanceError(f"{missing} blocks are not free though nothing runs")


def pressure(subject: Subject, profile: Profile, case: Case) -> None:
    """Blocks for half of the requests: they are preempted, all end with the right tokens, nothing stays behind."""
    store = ModelStore.of(subject)
    model = store.tiny("llama")
    reference = store.reference(model.path, model.model)
    prompts = prompts_of((9, 14, 11, 16), seed=profile.seed)
    with running(subject, model.path) as engine:
        size = engine.link.facts.block_size
    new = max(60, 2 * size)
    blocks = len(prompts) * -(-(16 + new) // size) // 2 + 2
    with running(subject, model.path, num_blocks=blocks, max_model_len=16 + new) as engine:
        for place, tokens in enumerate(engine.generate(prompts, max_tokens=new)):
            _same(tokens, reference, prompts[place], f"request {place} among preemptions")
        if not engine.stats.num_preemptions:
            raise NotApplicableError(f"{blocks} blocks of {size} tokens were enough for all")
        (long,) = prompts_of((16 + new + 5,), seed=1)
        try:
            engine.submit(500, long, max_tokens=4)
        except TenonError:
            pass  # refused at admission
        else:
            engine.run()
        engine.generate(prompts[:2], first_id=600, max_tokens=4)


def _same(ours: list[int], reference: Any, prompt: list[int], label: str) -> None:
    try:
        assert_greedy_equal(ours, reference, prompt, label=label)
    except AssertionError as error:
        raise ConformanceError(str(error)) from error


def models(subject: Subject, profile: Profile) -> Iterable[Case]:
    """One layer group; several."""
    names = MODELS if profile.wide else ("one-group",)
    return [Case(id=name, value=MODELS[name]) for name in names]


def _accounts(subject: Subject, profile: Profile) -> Iterable[Case]:
    for name, model in MODELS.items():
        for cached in (True, False):
            if profile.wide or (name == "one-group") == cached:
                yield Case(id=f"{name}-{'cached' if cached else 'uncached'}", value=(model, cached))


CHECKS = (
    Check(level="L4", name="accounting", what="blocks are what tokens need", cases=_accounts, run=accounting),
    Check(level="L4", name="pressure", what="too few blocks: preempted, right, nothing left", run=pressure),
    Check(level="L4", name="aborts", what="abort storms leave nothing behind", cases=models, run=aborts),
)
