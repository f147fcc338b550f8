"""Level 4, memory: an engine that runs for long holds what it held, whatever ends its requests, and makes room."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from tenon_platforms.device import Fault
from tenon_platforms.errors import CapacityError, TenonError

from ..engines import Engine, prompts_of, running
from ..meters.memory import MemorySamples, is_host_memory, settled
from ..models.store import ModelStore
from ..profile import Profile
from ..registry import Case, Check, ConformanceError, NotApplicableError
from ..subject import Subject
from ..truth.equality import assert_greedy_equal

MODELS = {"one-group": "llama", "two-groups": "gemma3"}
MOST_GROUPS = {"llama": 1, "gemma3": 4}  # one for every layer, at most
LENGTHS = (3, 20, 47, 9, 64, 31)
NEW_TOKENS = 12
WARM_ROUNDS = 3
LEAST_ROUNDS = 8
REPEATS = 3  # of a soak that seems to leak: what is no leak does not grow three times
STORMS = 4
RESTARTS = 5
HOG_BYTES = 2**26
MOST_POOL = 2**33  # bytes: tiny blocks of a larger pool are too many to keep books of


@contextmanager
def _engine(subject: Subject, name: str, **flat: Any) -> Iterator[Engine]:
    with running(subject, ModelStore.of(subject).tiny(name).path, **flat) as engine:
        yield engine


def soak(subject: Subject, profile: Profile, case: Case) -> None:
    """Rounds of the same requests: memory at rest does not grow."""
    with _engine(subject, case.value, num_blocks=64) as engine:
        for number in range(WARM_ROUNDS):
            _round(engine, profile.seed, number)
        with settled():
            found = [_slopes(engine, profile) for _ in range(REPEATS)] if _slopes(engine, profile) else [{}]
    lasting = set.intersection(*map(set, found))
    if lasting:
        what = ", ".join(f"{name} by {found[-1][name]:.3g} a step" for name in sorted(lasting))
        raise ConformanceError(f"memory grows in each of {REPEATS + 1} soaks of {profile.soak} steps: {what}")


def _slopes(engine: Engine, profile: Profile) -> dict[str, float]:
    """One soak: what grew."""
    samples, begin, rounds = MemorySamples(device=engine.link.device), engine.num_steps, 0
    while engine.num_steps - begin < profile.soak or rounds < LEAST_ROUNDS:
        _round(engine, profile.seed, rounds)
        samples.take()
        rounds += 1
    return samples.slopes(steps=(engine.num_steps - begin) / rounds)


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
    with _engine(subject, name, enable_prefix_caching=cached, num_blocks=80) as engine:
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


def too_large(subject: Subject, profile: Profile, case: Case) -> None:
    """A KV pool as large as the whole device is refused with a remedy, or is really there; then a small one works."""
    store = ModelStore.of(subject)
    path = store.tiny("llama").path
    total = subject.device.memory().total
    sizes = [total * 4]
    if not is_host_memory(subject.device) and total <= MOST_POOL:
        sizes.append(total - 2**16)  # more than is free, once the weights are there
    for size in sizes:
        try:
            with running(subject, path, kv_cache_memory=size) as engine:
                engine.generate(prompts_of((9,)), max_tokens=4)
        except TenonError as error:
            if not isinstance(error, CapacityError) or not error.remedy:
                raise ConformanceError(
                    f"a KV pool of {size} bytes on a device of {total} fails with {type(error).__name__}: {error};"
                    " expected CapacityError with a remedy: is the error of the allocation classified OUT_OF_MEMORY?"
                ) from error
        except Exception as error:
            raise ConformanceError(
                f"a KV pool of {size} bytes on a device of {total} fails with {type(error).__name__}: {error}"
            ) from error
    with running(subject, path, num_blocks=32, max_model_len=64) as engine:
        engine.generate(prompts_of((9, 40)), max_tokens=8)


def exhausted(subject: Subject, profile: Profile, case: Case) -> None:
    """What does not fit into the device raises an error that is classified as memory; then what fits works."""
    device = subject.device
    total = device.memory().total
    held: list[Any] = []
    try:
        for _ in range(3):
            held.append(device.empty((total // 2,), torch.uint8))  # may be lazy: pages count when they are written
    except Exception as error:
        if device.classify_fault(error) is not Fault.OUT_OF_MEMORY:
            raise ConformanceError(
                f"more memory than there is: {type(error).__name__}: {error} is classified"
                f" {device.classify_fault(error).value}, not out-of-memory"
            ) from error
    else:
        if not is_host_memory(device):
            raise ConformanceError(f"{3 * (total // 2)} bytes could be had of a device that has {total}")
    finally:
        held.clear()
    small = subject.to_device(torch.arange(100, dtype=torch.int32))
    if subject.to_host(small).tolist() != list(range(100)):
        raise ConformanceError("after running out of memory, a small tensor comes back with other values")


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


def hog(subject: Subject, profile: Profile, case: Case) -> None:
    """Someone else takes the device's memory while an engine runs: it serves on, or fails its requests and recovers."""
    (prompt,) = prompts_of((40,), seed=profile.seed)
    with _engine(subject, "llama", num_blocks=32, max_model_len=64) as engine:
        device = engine.link.device
        if is_host_memory(device):
            raise NotApplicableError("the device's memory is the host's: filling it would end other processes")
        before = engine.generate([prompt], max_tokens=16)
        held = list(_fill(device))
        engine.submit(10, prompt, max_tokens=16)
        engine.run()
        held.clear()
        if engine.generate([prompt], first_id=20, max_tokens=16) != before:
            raise ConformanceError("after memory was short, the same request gives other tokens")


def _fill(device: Any) -> Iterator[Any]:
    """Take memory in ever smaller pieces until nothing is left."""
    size = HOG_BYTES
    while size >= 2**12:
        try:
            yield device.empty((size,), torch.uint8)
        except Exception as error:
            if device.classify_fault(error) is not Fault.OUT_OF_MEMORY:
                raise
            size //= 4


def restarts(subject: Subject, profile: Profile, case: Case) -> None:
    """Engines come and go: each gives back what it took."""
    path = ModelStore.of(subject).tiny("llama").path
    grown: dict[str, float] = {}
    for _ in range(REPEATS):
        samples = MemorySamples(device=subject.device)
        for number in range(RESTARTS + 1):
            with running(subject, path, num_blocks=32, max_model_len=64) as engine:
                engine.generate(prompts_of((9, 40)), max_tokens=4)
            del engine
            if number:
                samples.take()
        grown = samples.slopes(least=RESTART_LEAST)
        if not grown:
            return
    what = ", ".join(f"{name} by {slope:.3g}" for name, slope in grown.items())
    raise ConformanceError(f"every start and shutdown leaves memory behind: {what}")


# a start loads weights and makes kernels: allocators keep some of it, the tiny model and its pool must not stay
RESTART_LEAST = {"device": 1.0, "host": 200_000.0, "objects": 200.0}


def _same(ours: list[int], reference: Any, prompt: list[int], label: str) -> None:
    try:
        assert_greedy_equal(ours, reference, prompt, label=label)
    except AssertionError as error:
        raise ConformanceError(str(error)) from error


def _models(subject: Subject, profile: Profile) -> Iterable[Case]:
    names = MODELS if profile.wide else ("one-group",)
    return [Case(id=name, value=MODELS[name]) for name in names]


def _accounts(subject: Subject, profile: Profile) -> Iterable[Case]:
    for name, model in MODELS.items():
        for cached in (True, False):
            if profile.wide or (name == "one-group") == cached:
                yield Case(id=f"{name}-{'cached' if cached else 'uncached'}", value=(model, cached))


CHECKS = (
    Check(
        level="L4",
        name="exhausted",
        what="running out of memory is classified and survived",
        run=exhausted,
        has_seed=False,
    ),
    Check(
        level="L4",
        name="too_large",
        what="a pool that does not fit is refused with a remedy",
        run=too_large,
        has_seed=False,
    ),
    Check(level="L4", name="accounting", what="blocks are what tokens need", cases=_accounts, run=accounting),
    Check(level="L4", name="pressure", what="too few blocks: preempted, right, nothing left", run=pressure),
    Check(level="L4", name="aborts", what="abort storms leave nothing behind", cases=_models, run=aborts),
    Check(level="L4", name="hog", what="memory taken while an engine runs", run=hog, has_seed=False),
    Check(level="L4", name="restarts", what="engines give back what they took", run=restarts, has_seed=False),
    Check(level="L4", name="soak", what="memory at rest does not grow", cases=_models, run=soak),
)
