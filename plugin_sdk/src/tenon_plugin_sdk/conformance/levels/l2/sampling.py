"""Sampling: every row's token against the contract's noise in float64, distributions, and log-probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tenon_platforms.batch import Logprobs
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.sampling import SamplerSpec, TokenLogprobsSpec
from tenon_platforms.shapes import SamplingMode
from tenon_platforms.torch_dtypes import to_torch

from ...buffers import Buffers
from ...cases.sampling import SamplingDraw, SamplingRow, draw_batch, make_batch
from ...cases.specs import claimed
from ...compare import assert_close, assert_equal
from ...profile import Profile
from ...registry import Case, Check, ConformanceError
from ...subject import Subject
from ...truth.rounding import FUNCTION_ULPS, U32, Bounded
from ...truth.sampling import choose, probabilities
from ...truth.statistics import SIGNIFICANCE, chi_squared, kolmogorov_smirnov

KINDS = ("greedy", "ties", "noise", "filters", "filter ties", "penalties", "edits", "grammar", "everything", "nan row")
COUNTS = (0, 1, 2, 7, 17)
VOCABS = (64, 257, 1031)


def run_batch(subject: Subject, draw: SamplingDraw, layout: str = "contiguous") -> Tensor:
    """Tokens of a batch, host int32 [rows]; counts are held to what was chosen."""
    kernel = subject.choose(SamplerSpec(vocab_size=draw.logits.shape[1]))
    with subject.device.inference_context():
        batch = make_batch(subject, draw)
        before = subject.to_host(batch.counts)
        buffers = Buffers(subject)
        logits = buffers.put("logits", draw.logits, layout)
        tokens = subject.to_host(kernel.run(logits, batch))
        buffers.check(may_change=kernel.flags.in_place)
        if tokens.dtype != torch.int32 or tuple(tokens.shape) != (len(draw.rows),):
            raise ConformanceError(
                f"the sampler returned {tokens.dtype} {list(tokens.shape)}, expected int32 [{len(draw.rows)}]"
            )
        expected = before.clone()
        for place, row in enumerate(draw.rows):
            if draw.mode.penalties and row.prompt is not None and place != draw.poisoned:
                expected[place + 1, 1, int(tokens[place])] += 1
        after = subject.to_host(batch.counts)
        healthy = [i for i in range(1, len(expected)) if i - 1 != draw.poisoned]  # slot 0 belongs to nobody
        assert_equal(after[healthy], expected[healthy], what="counts after sampling")
    return tokens


def check_tokens(subject: Subject, draw: SamplingDraw, layout: str = "contiguous") -> None:
    """Every row's token is the one that float64 chooses, or one that rounding may have preferred."""
    tokens = run_batch(subject, draw, layout).tolist()
    for place, (row, token) in enumerate(zip(draw.rows, tokens, strict=True)):
        if place == draw.poisoned:
            continue
        refusal = choose(row, draw.logits[place].double().numpy(), exact=draw.exact).refuses(token)
        if refusal is not None:
            raise ConformanceError(f"row {place} of {len(tokens)}: {refusal} [{row}]")


def sampler(subject: Subject, profile: Profile, case: Case) -> None:
    kind, dtype = case.value
    for place, count in enumerate(COUNTS):
        for number in range(3 if profile.wide else 1):
            vocab = VOCABS[(place + number) % len(VOCABS)]
            draw = draw_batch(kind, count, vocab, profile.seed + 17 * place + number, to_torch(dtype))
            check_tokens(subject, draw, ("contiguous", "strided")[place % 2])


def distribution(subject: Subject, profile: Profile, case: Case) -> None:
    """Many positions of one row are draws of its distribution."""
    row: SamplingRow = case.value
    vocab = 48
    random = np.random.default_rng(profile.salted(5))
    logits = _decided(row, random, vocab)
    rows = [
        SamplingRow(
            temperature=row.temperature,
            top_k=row.top_k,
            top_p=row.top_p,
            min_p=row.min_p,
            position=p + 1,
            seed=profile.salted(3),
        )
        for p in range(profile.draws)
    ]
    mode = SamplingMode(noise=True, filters=bool(row.top_k or row.min_p or row.top_p < 1))
    tokens = run_batch(subject, SamplingDraw(rows=rows, logits=logits.expand(len(rows), -1).contiguous(), mode=mode))
    counts = np.bincount(tokens.numpy(), minlength=vocab).astype(np.float64)
    shares = probabilities(row, logits.double().numpy())
    for name, chance in (
        ("chi-squared", chi_squared(counts, shares)),
        ("Kolmogorov-Smirnov", kolmogorov_smirnov(counts, shares)),
    ):
        if chance < SIGNIFICANCE:
            raise ConformanceError(
                f"{len(rows)} draws do not follow their distribution: {name} says a chance of {chance:.3g};"
                f" drawn {counts[:8]}, expected {(shares * len(rows))[:8].round(1)} of the first 8 tokens"
            )


def _decided(row: SamplingRow, random: np.random.Generator, vocab: int) -> Tensor:
    """Logits [vocab] of which no rounding decides what the row's filters keep: its distribution is one."""
    while True:
        logits = random.standard_normal(vocab).astype(np.float32) * 1.5
        choice = choose(row, logits.astype(np.float64), exact=False)
        if bool((choice.kept == choice.possible).all()):
            return torch.from_numpy(logits)


def token_logprobs(subject: Subject, profile: Profile, case: Case) -> None:
    """Log-softmax, ranks and the best few, of logits as the model gave them."""
    dtype: DType = case.value
    for place, (count, vocab, k) in enumerate(((0, 64, 1), (1, 257, 0), (5, 64, 1), (9, 257, 5), (3, 1031, 20))):
        kernel = subject.choose(TokenLogprobsSpec(vocab_size=vocab))
        draw = draw_batch("ties" if place == 3 else "greedy", count, vocab, profile.salted(40 + place), to_torch(dtype))
        random = torch.Generator().manual_seed(profile.salted(place))
        tokens = torch.randint(0, vocab, (count,), generator=random, dtype=torch.int32)
        with subject.device.inference_context():
            buffers = Buffers(subject)
            found: Logprobs = kernel.run(
                buffers.put("logits", draw.logits, "strided"), buffers.put("tokens", tokens), k
            )
            parts: dict[str, Any] = {
                n: subject.to_host(getattr(found, n)) for n in ("chosen", "rank", "top_ids", "top")
            }
            buffers.check()
        _check_logprobs(draw.logits.double(), tokens.long(), k, parts)


def _check_logprobs(logits: Tensor, tokens: Tensor, k: int, parts: dict[str, Tensor]) -> None:
    count, vocab = logits.shape
    error = U32 * (FUNCTION_ULPS + vocab**0.5 + 4 * logits.abs().amax(-1, keepdim=True)) if count else logits[:, :1]
    scores = Bounded(logits.log_softmax(-1), error.expand_as(logits))
    picked = Bounded(scores.value.gather(1, tokens[:, None])[:, 0], error[:, 0])
    assert_close(parts["chosen"], picked, DType.FLOAT32, what="the chosen token's log-probability")
    if parts["rank"].dtype != torch.int32 or parts["top_ids"].dtype != torch.int32:
        raise ConformanceError("rank and top_ids are int32")
    mine = logits.gather(1, tokens[:, None])
    slack = 2 * error
    least, most = ((logits > mine + slack).sum(-1) + 1, (logits > mine).sum(-1) + 1)
    if not bool(((parts["rank"] >= least) & (parts["rank"] <= most)).all()):
        raise ConformanceError(f"rank is {parts['rank'].tolist()}, expected {most.tolist()}: it counts strictly better")
    if tuple(parts["top"].shape) != (count, k) or tuple(parts["top_ids"].shape) != (count, k):
        raise ConformanceError(f"the best {k} have shape {list(parts['top'].shape)}, expected {[count, k]}")
    best = Bounded(scores.value.sort(-1, descending=True).values[:, :k], error.expand(-1, k))
    assert_close(parts["top"], best, DType.FLOAT32, what=f"the best {k} log-probabilities")
    ids = parts["top_ids"].long()
    if k and (bool((ids < 0).any()) or bool((ids >= vocab).any())):
        raise ConformanceError("top_ids lie outside the vocabulary")
    at = Bounded(scores.value.gather(1, ids), error.expand(-1, k))
    assert_close(parts["top"], at, DType.FLOAT32, what="the log-probabilities at top_ids")


def _kinds(subject: Subject, profile: Profile) -> list[Case]:
    cases = [Case(id=kind.replace(" ", "-"), value=(kind, DType.FLOAT32)) for kind in KINDS]
    halves = [dtype for dtype in claimed(subject.capabilities) if dtype is not DType.FLOAT32]
    return cases + [Case(id=f"{dtype}-noise", value=("noise", dtype)) for dtype in halves]


def _rows(subject: Subject, profile: Profile) -> list[Case]:
    rows = {
        "plain": SamplingRow(temperature=1.0),
        "cool": SamplingRow(temperature=0.5),
        "top-k": SamplingRow(temperature=1.0, top_k=7),
        "top-p": SamplingRow(temperature=1.2, top_p=0.8),
        "min-p": SamplingRow(temperature=1.0, min_p=0.1),
    }
    return [Case(id=name, value=row) for name, row in rows.items()]


CHECKS = (
    Check(level="L2", name="sampler", what="tokens against the contract's noise in float64", cases=_kinds, run=sampler),
    Check(level="L2", name="distribution", what="draws follow their distribution", cases=_rows, run=distribution),
    Check(
        level="L2",
        name="token_logprobs",
        what="log-probabilities and ranks",
        cases=lambda subject, profile: [Case(id=str(d), value=d) for d in claimed(subject.capabilities)],
        run=token_logprobs,
    ),
)
