"""Claims at the engine's door: what is not claimed is refused at start or at admission, with a reason."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tenon_platforms.capabilities import Determinism
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError, RequestError

from ...engines import prompts_of, running
from ...models.store import ModelStore
from ...profile import Profile
from ...registry import Case, Check, ConformanceError
from ...subject import Subject

FLOATS = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
# what a request does -> the feature that a platform may refuse by name
FEATURES: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": 3},
    "prompt_logprobs": {"prompt_logprobs": 2},
    "penalties": {"presence_penalty": 1.0},
    "logit_bias": {"logit_bias": {3: 1.0}},
    "n": {"n": 2},
    "min_tokens": {"min_tokens": 3},
    "min_p": {"min_p": 0.1, "temperature": 1.0},
}


def unclaimed(subject: Subject, profile: Profile, case: Case) -> None:
    """A start that asks for what is not claimed ends in `ConfigError` with a remedy, and is not granted in silence."""
    path = ModelStore.of(subject).tiny("llama").path
    try:
        with running(subject, path, num_blocks=32, max_model_len=64, **case.value):
            raise ConformanceError(f"{case.id} is not claimed, and an engine starts with it all the same")
    except ConfigError as error:
        if not error.remedy:
            raise ConformanceError(f"{case.id} is refused without a remedy: {error}") from error
    except ConformanceError:
        raise
    except Exception as error:
        raise ConformanceError(
            f"{case.id} is not claimed; an engine that is started with {case.value} ends in {type(error).__name__}:"
            f" {error}; expected ConfigError with a remedy"
        ) from error


def admission(subject: Subject, profile: Profile, case: Case) -> None:
    """Every feature of requests is served to its end, or refused at admission with the platform's reason."""
    path = ModelStore.of(subject).tiny("llama").path
    dtype = subject.capabilities.dtypes[0].value
    with running(subject, path, dtype=dtype) as engine:
        for number, (name, params) in enumerate(FEATURES.items()):
            (prompt,) = prompts_of((12,), seed=number)
            try:
                engine.submit(number, prompt, max_tokens=6, **params)
            except RequestError as error:
                if not subject.capabilities.refused:
                    raise ConformanceError(f"{name} is refused, but `refused` says nothing of it: {error}") from error
                continue
            engine.run()
            if engine.reasons[number, 0] != "length":
                raise ConformanceError(
                    f"a request with {params} was admitted and ended with {engine.reasons[number, 0]}:"
                    f" {engine.messages[number, 0]}; expected 6 tokens, or {name!r} in `Capabilities.refused`"
                )


def _unclaimed(subject: Subject, profile: Profile) -> Iterable[Case]:
    claimed = subject.capabilities
    for dtype in (*FLOATS, DType.FLOAT8_E4M3, DType.INT8):
        if dtype not in claimed.dtypes and dtype in FLOATS:
            yield Case(id=f"dtype-{dtype.value}", value={"dtype": dtype.value})
        if dtype not in claimed.kv_dtypes:
            first = claimed.dtypes[0].value
            yield Case(id=f"kv-{dtype.value}", value={"dtype": first, "kv_cache_dtype": dtype.value})
    if claimed.determinism is not Determinism.BATCH:
        yield Case(id="batch-invariant", value={"batch_invariant": True, "dtype": claimed.dtypes[0].value})


CHECKS = (
    Check(level="L6", name="unclaimed", what="what is not claimed is refused", cases=_unclaimed, run=unclaimed),
    Check(level="L6", name="admission", what="requests are served or refused", run=admission),
)
