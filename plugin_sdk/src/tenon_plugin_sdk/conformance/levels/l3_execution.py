"""Level 3, execution: captured or traced equals eager, at every replay, and nothing compiles after it is ready."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tenon_platforms.attention import GraphSupport
from tenon_platforms.batch import RowColumn
from tenon_platforms.capabilities import Determinism
from tenon_platforms.dtypes import DType
from tenon_platforms.execution import EngineLimits, ExecutableKind
from tenon_platforms.shapes import SamplingMode, ShapeKey, ShapePolicy

from ..cases.mini_step import MAX_ROWS, VOCAB, MiniModel, MiniStep, make_model, model_spec
from ..cases.specs import claimed
from ..cases.step_inputs import KeyedInputs, StepDraw, draw_step
from ..compare import assert_equal
from ..profile import Profile
from ..registry import Case, Check, ConformanceError, NotApplicableError
from ..subject import Subject
from ..truth.rounding import unit
from .l2.attention import poison_blocks, read_blocks

MAX_BLOCKS = 4
MODES = (SamplingMode(), SamplingMode(noise=True))
QUICK_KEYS = 4


def policy_of(subject: Subject, model: MiniModel) -> ShapePolicy:
    """The platform's lattice for the mini model."""
    limits = EngineLimits(max_rows=MAX_ROWS, max_model_len=MAX_BLOCKS * model.block_size, max_blocks=MAX_BLOCKS)
    execution = subject.platform.execution(subject.device)
    return execution.shape_policy(model_spec(), limits, subject.capabilities)


def keys_of(subject: Subject, profile: Profile) -> list[ShapeKey]:
    """Keys to try: those of the lattice, or where it is dynamic some sizes as they come."""
    model = make_model(subject, claimed(subject.capabilities)[0])
    policy = policy_of(subject, model)
    eager = list(policy.eager_keys())
    if not eager:
        needs = [_need(rows, rows, 1, model, mode) for rows in (1, 3, 4) for mode in MODES]
        return [policy.key(need) for need in [*needs, _need(13, 2, 12, model, MODES[0])]]
    if profile.wide:
        return eager
    decodes = [key for key in eager if key.is_decode]
    prefills = [key for key in eager if not key.is_decode and key.logits <= key.rows]
    return [*_spread(decodes, QUICK_KEYS), *_spread(prefills, 2)]


def _spread(keys: list[ShapeKey], count: int) -> list[ShapeKey]:
    """Some of them, the ends among them."""
    places = {round(i * (len(keys) - 1) / max(count - 1, 1)) for i in range(min(count, len(keys)))}
    return [keys[place] for place in sorted(places)]


def _need(tokens: int, rows: int, query: int, model: MiniModel, mode: SamplingMode) -> ShapeKey:
    return ShapeKey(tokens=tokens, rows=rows, logits=rows, max_query=query, blocks=MAX_BLOCKS, mode=mode)


def replay(subject: Subject, profile: Profile, case: Case) -> None:
    """One key, many steps: the executable and a kernel-by-kernel twin give the same."""
    key: ShapeKey = case.value
    dtype = claimed(subject.capabilities)[0]
    model = make_model(subject, dtype)
    execution = subject.platform.execution(subject.device)
    with subject.device.inference_context():
        ours = MiniStep.make(subject, model, MAX_BLOCKS, lambda: None)
        twin = MiniStep.make(subject, model, MAX_BLOCKS, subject.device.synchronize)
        executable = execution.executable(ours, name="step")
        _check_claim(executable.kind, subject.capabilities.executable)
        _check_capturable(executable.kind, model, key)
        inputs = KeyedInputs(subject=subject, step=ours, key=key)
        others = KeyedInputs(subject=subject, step=twin, key=key)
        random = np.random.default_rng(profile.seed + key.tokens)
        _same_memory(subject, (ours, twin), random)
        first = draw_step(key, MAX_BLOCKS, model.block_size, random)
        executable.prepare(key, inputs.call(first))
        subject.device.synchronize()
        _same_memory(subject, (ours, twin), random)
        compiles = executable.num_compiles
        for number in range(profile.replays):
            draw = draw_step(key, MAX_BLOCKS, model.block_size, random)
            _one(subject, executable, (inputs, others), draw, dtype, number)
        if key.static and executable.num_compiles != compiles:
            raise ConformanceError(
                f"{executable.num_compiles - compiles} compilations in {profile.replays} runs of the prepared {key}:"
                " expected none"
            )
        every = list(range(1, ours.num_blocks))
        mine, theirs = (read_blocks(subject, model.backend, step.cache, every) for step in (ours, twin))
        _same(mine, theirs, subject, model, dtype, what="the KV cache after all replays")
        executable.release()


def _one(
    subject: Subject, executable: Any, both: tuple[KeyedInputs, KeyedInputs], draw: StepDraw, dtype: DType, number: int
) -> None:
    inputs, others = both
    key, model = inputs.key, inputs.step.model
    outputs = executable.run(key, inputs.call(draw))
    found = [subject.to_host(part) for part in (outputs.tokens, outputs.hidden, inputs.step.state.last_tokens)]
    expected = others.step(others.call(draw))
    assert expected.hidden is not None
    want = [subject.to_host(part) for part in (expected.tokens, expected.hidden, others.step.state.last_tokens)]
    count = min(len(draw.rows), key.logits)
    what = f"replay {number} of {executable.kind.value} ({len(draw.rows)} of {key.rows} rows)"
    _same(found[1][:count], want[1][:count], subject, model, dtype, what=f"logits, {what}")
    assert_equal(found[0][:count], want[0][:count], what=f"tokens, {what}")
    assert_equal(found[2][:MAX_ROWS], want[2][:MAX_ROWS], what=f"last tokens, {what}")


def _same(found: Tensor, want: Tensor, subject: Subject, model: MiniModel, dtype: DType, *, what: str) -> None:
    """To the bit where that is claimed, else within a few roundings."""
    if model.deterministic and subject.capabilities.determinism is not Determinism.NONE:
        assert_equal(found, want, what=f"{what}, to the bit since kernels say they are deterministic")
        return
    size = want[want.isfinite()].abs().max() if bool(want.isfinite().any()) else torch.tensor(0.0)
    gap = (found.double() - want.double()).abs().nan_to_num(nan=0.0)
    if bool((found.isnan() != want.isnan()).any()) or bool((gap > 64 * unit(dtype) * (size + 1)).any()):
        raise ConformanceError(f"{what}: differs by up to {float(gap.max()):.3g} from eager")


def _check_claim(kind: ExecutableKind, claimed: ExecutableKind) -> None:
    """A device that compiles its steps must say so: at start-up kernels are refused by the claim alone."""
    if (kind is ExecutableKind.TRACE) != (claimed is ExecutableKind.TRACE):
        raise ConformanceError(f"executables are of kind {kind.value}, capabilities say {claimed.value}")


def _check_capturable(kind: ExecutableKind, model: MiniModel, key: ShapeKey) -> None:
    if kind is ExecutableKind.TRACE and not model.graph_safe:
        unsafe = sorted(name for name, kernel in model.kernels.items() if not kernel.flags.graph_safe)
        raise ConformanceError(f"this device compiles every step, but {', '.join(unsafe)} may not stand in one")
    if kind is ExecutableKind.CAPTURE and key.static:
        least = GraphSupport.SINGLE_TOKEN_DECODE if key.is_decode else GraphSupport.ALWAYS
        if not model.graph_safe or model.backend.graph_support < least:
            raise NotApplicableError("the kernels of this step say that they cannot be captured")


def _same_memory(subject: Subject, steps: tuple[MiniStep, MiniStep], random: np.random.Generator) -> None:
    """The same random cache, last tokens and sampling parameters on both sides."""
    model = steps[0].model
    layout = model.backend.layout
    blocks = list(range(1, steps[0].num_blocks))
    shape = (len(blocks), 2, model.block_size, layout.num_kv_heads, layout.head_dim)
    from tenon_platforms.torch_dtypes import to_torch

    canonical = torch.from_numpy(random.standard_normal(shape)).to(to_torch(layout.canonical_dtype))
    tokens = torch.from_numpy(random.integers(0, VOCAB, MAX_ROWS + 1).astype(np.int32))
    params = np.zeros((MAX_ROWS + 1, len(RowColumn)), dtype=np.int32)
    for column, value in ((RowColumn.TEMPERATURE, 0.9), (RowColumn.TOP_P, 1.0), (RowColumn.REPETITION, 1.0)):
        params[:MAX_ROWS, column] = np.float32(value).view(np.int32)
    params[:, RowColumn.NOISE_KEY0] = np.arange(MAX_ROWS + 1)
    where = torch.tensor(blocks, dtype=torch.int32)
    for step in steps:
        model.backend.import_blocks(step.cache, subject.to_device(where), subject.to_device(canonical))
        subject.fill(step.state.last_tokens, tokens)
        subject.fill(step.state.params, torch.from_numpy(params))
    subject.device.synchronize()


def lattice(subject: Subject, profile: Profile, case: Case) -> None:
    """Every step that the limits allow has a key, which is no smaller than the step."""
    model = make_model(subject, claimed(subject.capabilities)[0])
    policy = policy_of(subject, model)
    limits = policy.limits
    if limits.max_rows < 1 or limits.max_tokens < limits.max_rows:
        raise ConformanceError(f"limits {limits}: every row needs a token a step")
    chunk = limits.fixed_chunk or limits.max_tokens
    prepared = set(policy.eager_keys())
    for rows in range(1, min(limits.max_rows, MAX_ROWS) + 1):
        for blocks in range(1, MAX_BLOCKS + 1):
            for mode in MODES:
                need = replace(_need(rows, rows, 1, model, mode), blocks=blocks)
                _check_key(policy, need, prepared)
    for rows in range(1, min(limits.max_prefills or MAX_ROWS, MAX_ROWS) + 1):
        for tokens in {rows * 2, min(chunk, limits.max_tokens), min(rows * chunk, limits.max_tokens)}:
            if tokens >= 2 * rows:
                _check_key(policy, _need(tokens, rows, tokens, model, MODES[0]), prepared)


def _check_key(policy: ShapePolicy, need: ShapeKey, prepared: set[ShapeKey]) -> None:
    key = policy.key(need)
    small = [name for name in ("tokens", "rows", "logits") if getattr(key, name) < getattr(need, name)]
    if key.blocks and key.blocks < need.blocks:
        small.append("blocks")
    if small:
        raise ConformanceError(f"the key {key} is smaller than the need {need} in {', '.join(small)}")
    if key.mode.union(need.mode) != key.mode:
        raise ConformanceError(f"the key {key} does not cover the sampler mode {need.mode}")
    if policy.strict and key not in prepared:
        raise ConformanceError(f"the lattice is strict, but {key} is not among its eager keys")


def padding(subject: Subject, profile: Profile, case: Case) -> None:
    """A padded step writes nothing into blocks of rows that are not in it."""
    model = make_model(subject, claimed(subject.capabilities)[0])
    keys = [key for key in keys_of(subject, profile) if key.static and key.is_decode and key.rows > 1]
    if not keys:
        raise NotApplicableError("no key is padded")
    key = keys[0]
    with subject.device.inference_context():
        step = MiniStep.make(subject, model, MAX_BLOCKS, subject.device.synchronize)
        inputs = KeyedInputs(subject=subject, step=step, key=key)
        random = np.random.default_rng(profile.salted(1))
        draw = draw_step(key, MAX_BLOCKS, model.block_size, random)
        draw = replace(draw, rows=draw.rows[:1], before=draw.before[:1], now=draw.now[:1])
        poison_blocks(subject, model.backend, step.cache, list(range(1, step.num_blocks)), model.block_size)
        step(inputs.call(draw))
        mine = set(draw.tables[draw.rows[0]].tolist())
        others = [block for block in range(1, step.num_blocks) if block not in mine]
        if not bool(read_blocks(subject, model.backend, step.cache, others).isnan().all()):
            written = read_blocks(subject, model.backend, step.cache, others).isnan().logical_not().flatten(1).any(1)
            blocks = [block for block, is_written in zip(others, written.tolist(), strict=True) if is_written]
            raise ConformanceError(
                f"a step of {len(draw.rows)} row, padded to {key.rows}, wrote into blocks {blocks} of other rows:"
                f" expected writes to {sorted(mine)} and the null block only [{key}]"
            )


def _keys(subject: Subject, profile: Profile) -> Iterable[Case]:
    seen: set[str] = set()
    for key in keys_of(subject, profile):
        mode = "greedy" if key.mode == SamplingMode() else "sampled"
        name = f"{'decode' if key.is_decode else 'prefill'}-{key.tokens}x{key.rows}-{key.blocks}-{key.logits}-{mode}"
        if name not in seen:
            seen.add(name)
            yield Case(id=name, value=key)


CHECKS = (
    Check(level="L3", name="lattice", what="every step the limits allow has a key", run=lattice, has_seed=False),
    Check(level="L3", name="replay", what="executables equal eager over many replays", cases=_keys, run=replay),
    Check(level="L3", name="padding", what="padding writes nowhere", run=padding),
)
