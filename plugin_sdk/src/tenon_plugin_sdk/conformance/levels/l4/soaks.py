"""What stays behind: engines that run for long, and engines that come and go, hold what they held before."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...engines import Engine, prompts_of, running
from ...meters.leaks import OBJECTS, MemorySamples
from ...meters.memory import BLOCKS, settled
from ...meters.origins import left_behind, untracked_growth
from ...models.store import ModelStore
from ...profile import Profile
from ...registry import Case, Check, ConformanceError
from ...subject import Subject
from .blocks import models

LENGTHS = (3, 20, 47, 9, 64, 31)
NEW_TOKENS = 12
WARM_ROUNDS = 3
MOST_WARM_ROUNDS = 6
LEAST_ROUNDS = 10  # two for every segment
SOAKS = 3  # a leak grows in all of them
RESTARTS = 5
# what a start and shutdown may leave: a reader of checkpoints forgets two numbers for every tensor it read
LEAST_A_START = {"resident bytes": 200_000.0, "bytes of malloc's heap": 4096.0, BLOCKS: 200.0}
TRACED = 2  # rounds that are traced to name a leak


def soak(subject: Subject, profile: Profile, case: Case) -> None:
    """Rounds of the same requests: memory at rest does not grow, not by one object."""
    with running(subject, ModelStore.of(subject).tiny(case.value).path, num_blocks=64, max_model_len=128) as engine:
        for number in range(WARM_ROUNDS):
            _round(engine, profile.seed, number)
        with settled():
            _warm(engine, profile)
            warm = engine.num_steps
            growth = _lasting(lambda: _growth(engine, profile))
        if not growth:
            return
        begin = engine.num_steps
        _round(engine, profile.seed, 0)
        steps = engine.num_steps - begin
        what, lines = _leak_text(partial(_round, engine, profile.seed, 0), growth, 1 / steps)
    raise ConformanceError(
        f"memory at rest grows by {what} a step, in each of {SOAKS} soaks of {profile.soak} steps after {warm} steps to"
        f" warm up; expected none [model {case.value}, seed {profile.seed}]{lines}"
    )


def restarts(subject: Subject, profile: Profile, case: Case) -> None:
    """Engines come and go: each gives back what it took."""
    path = ModelStore.of(subject).tiny("llama").path

    def start() -> None:
        with running(subject, path, num_blocks=32, max_model_len=64) as engine:
            engine.generate(prompts_of((9, 40)), max_tokens=4)

    def growth() -> dict[str, float]:
        samples = MemorySamples(device=subject.device, rounds=RESTARTS)
        for _ in range(RESTARTS):
            start()
            samples.take()
        return samples.growth(least=LEAST_A_START)

    start()
    start()
    with settled():
        found = _lasting(growth)
    if found:
        what, lines = _leak_text(start, found)
        raise ConformanceError(f"every start and shutdown of an engine leaves {what}: expected none{lines}")


def _lasting(measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """What grows whenever it is measured; nothing as soon as nothing does."""
    found = measure()
    for _ in range(SOAKS - 1):
        if found:
            again = measure()
            found = {name: again[name] for name in found if name in again}
    return found


def _warm(engine: Engine, profile: Profile) -> None:
    """Until a round leaves everything as it was; a leak never does, and then it is soaked all the same."""
    samples = MemorySamples(device=engine.link.device, rounds=MOST_WARM_ROUNDS)
    while samples.taken < samples.rounds and not samples.is_still():
        _round(engine, profile.seed, samples.taken)
        samples.take()


def _growth(engine: Engine, profile: Profile) -> dict[str, float]:
    """One soak: what grew, by how much a step."""
    begin = engine.num_steps
    _round(engine, profile.seed, 0)
    steps = engine.num_steps - begin
    samples = MemorySamples(device=engine.link.device, rounds=max(-(-profile.soak // steps), LEAST_ROUNDS))
    for number in range(samples.rounds):
        _round(engine, profile.seed, number)
        samples.take()
    return samples.growth(steps=steps)


def _round(engine: Engine, seed: int, number: int) -> None:
    """The same requests again: prompts, samples that share one, a sampled one, an abort. Ends idle."""
    prompts = prompts_of(LENGTHS, seed=seed)
    engine.forget()
    for place, prompt in enumerate(prompts):
        engine.submit(place + 1, prompt, max_tokens=NEW_TOKENS, n=2 if place == 1 else 1)
    engine.submit(90, prompts[2], max_tokens=NEW_TOKENS, temperature=1.0, repetition_penalty=1.1, seed=7)
    engine.run(lambda step: engine.link.abort(ids=[4]) if step == 9 else None)
    if engine.stats.num_free_blocks != engine.stats.num_blocks:
        raise ConformanceError(f"round {number}: {engine.stats.num_free_blocks} of {engine.stats.num_blocks} are free")


def _leak_text(work: Callable[[], None], growth: dict[str, float], scale: float = 1.0) -> tuple[str, str]:
    """What grew, and which lines of code left it there. scale: of what is one more each time that `work` is done."""
    lines = left_behind(work, TRACED)
    objects = {name: slope for name, slope in growth.items() if name.startswith(OBJECTS)}
    if BLOCKS in growth and not objects:
        objects = {f"{OBJECTS}{name}": more * scale for name, more in untracked_growth(work, TRACED).items()}
    what = ", ".join(f"{slope:.3g} {name}" for name, slope in (objects | growth).items())
    return what, "".join(f"\n    made at {line}" for line in lines)


CHECKS = (
    Check(level="L4", name="restarts", what="engines give back what they took", run=restarts, has_seed=False),
    Check(level="L4", name="soak", what="memory at rest does not grow", cases=models, run=soak),
)
