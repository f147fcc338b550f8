"""Tiny models of every kind of attention, feed-forward, type and quantization: greedy tokens are Transformers'."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from tenon_platforms.dtypes import DType
from tenon_platforms.errors import TenonError
from tenon_platforms.torch_dtypes import to_torch

from ...cases.kept import ONE_BYTE
from ...engines import prompts_of, running
from ...models.cached import cached_reference
from ...models.gguf_files import load_reference, make_folder, save_meant, write_gguf
from ...models.store import ModelStore
from ...models.tiny import TINY
from ...profile import Profile
from ...registry import Case, Check, ConformanceError
from ...subject import Subject
from ...truth.equality import Reference, assert_wide, hf_reference, logits_of
from ..l2.running import HALF_EPS
from .comparing import LENGTHS, generate, needs_float32, same_tokens

# grouped queries; all heads and YaRN; biases; QK-norm and tied; windows; routed experts; several layer groups
QUICK_MODELS = ("llama", "llama-mha-yarn", "qwen2", "qwen3", "mistral-window", "qwen3_moe", "mixtral", "gemma3")
KINDS = ("F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
QUICK_FILES = ("llama-Q8_0", "llama-Q4_0", "wide-llama-Q6_K", "qwen3moe-Q8_0")
FILES = (
    *(f"{'wide-llama' if kind.endswith('_K') else 'llama'}-{kind}" for kind in KINDS),
    "qwen3moe-Q8_0",
    "gemma3-Q8_0",
)


def transformers(subject: Subject, profile: Profile, case: Case) -> None:
    """One family: prompts of every length in one batch."""
    needs_float32(subject)
    store = ModelStore.of(subject)
    model = store.tiny(case.value, profile.seed)
    reference, prompts = store.reference(model.path, model.model), prompts_of(LENGTHS, seed=profile.seed)
    assert_wide(reference, prompts[-1])
    same_tokens(generate(subject, model.path, prompts), reference, prompts, case.value)


def types(subject: Subject, profile: Profile, case: Case) -> None:
    """A claimed type: as near to float64 as Transformers in that type, within the multiple that equality has."""
    dtype: DType = case.value
    model = ModelStore.of(subject).tiny("llama", profile.seed)
    rounded = copy.deepcopy(model.model).to(to_torch(dtype))
    exact = copy.deepcopy(rounded).double()
    reference = Reference(narrow=logits_of(rounded), wide=logits_of(exact))
    prompts = prompts_of((1, 9, 40, 90), seed=profile.seed)
    same_tokens(generate(subject, model.path, prompts, dtype=dtype.value), reference, prompts, f"llama in {dtype}")


def kv_types(subject: Subject, profile: Profile, case: Case) -> None:
    """A claimed type of the KV cache: the tokens of keys and values as it holds them, prompts whole and in chunks."""
    needs_float32(subject)
    kv: DType = case.value
    model = ModelStore.of(subject).tiny("llama", profile.seed)
    reference, prompts = cached_reference(model.model, kv), prompts_of((1, 9, 40, 90), seed=profile.seed)
    for flat in ({}, {"max_num_batched_tokens": 16}):
        found = generate(subject, model.path, prompts, kv_cache_dtype=kv.value, **flat)
        same_tokens(found, reference, prompts, f"llama over a cache in {kv}, {flat or 'whole'}")


def quantized(subject: Subject, profile: Profile, case: Case) -> None:
    """A GGUF file: the tokens of the weights that it means; a kind that is not claimed is refused with a reason."""
    needs_float32(subject)
    checkpoint, _, kind = case.value.rpartition("-")
    store = ModelStore.of(subject)
    held = store.path / "gguf"
    held.mkdir(exist_ok=True)
    path = held / f"{case.value}.gguf"
    tiny = write_gguf(_folder(store, checkpoint), path, kind=kind)
    prompts = prompts_of((1, 7, 60), seed=profile.seed)
    if kind != "F16" and subject.capabilities.scheme(f"gguf-{kind.lower()}") is None:
        try:
            with running(subject, path):
                raise ConformanceError(f"gguf-{kind.lower()} is not claimed, and an engine starts on it all the same")
        except TenonError:
            return
    meant = held / case.value
    model = load_reference(meant if meant.exists() else save_meant(tiny, meant))
    reference = Reference(narrow=logits_of(_shaken(model)), wide=hf_reference(model).wide)
    same_tokens(generate(subject, path, prompts, new=16), reference, prompts, f"{case.value}.gguf")


def _shaken(model: Any) -> Any:
    """The model with every matrix off by what L2 allows a stored weight: what that does to logits is the error."""
    shaken = copy.deepcopy(model)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in shaken.parameters():
            if parameter.ndim > 1:
                parameter.mul_(1 + HALF_EPS * (torch.rand(parameter.shape, generator=random) * 2 - 1))
    return shaken


def _folder(store: ModelStore, checkpoint: str) -> Path:
    folder = store.path / "hf"
    folder.mkdir(exist_ok=True)
    made = folder / checkpoint
    return made if made.exists() else make_folder(checkpoint, folder)


def _families(subject: Subject, profile: Profile) -> Iterable[Case]:
    return [Case(id=name, value=name) for name in (sorted(TINY) if profile.wide else QUICK_MODELS)]


def _files(subject: Subject, profile: Profile) -> Iterable[Case]:
    return [Case(id=name.lower(), value=name) for name in (FILES if profile.wide else QUICK_FILES)]


def _dtypes(subject: Subject, profile: Profile) -> Iterable[Case]:
    return [Case(id=dtype.value, value=dtype) for dtype in subject.capabilities.dtypes if dtype is not DType.FLOAT32]


def _kv_types(subject: Subject, profile: Profile) -> Iterable[Case]:
    return [Case(id=kv.value, value=kv) for kv in ONE_BYTE if kv in subject.capabilities.kv_dtypes]


CHECKS = (
    Check(level="L6", name="transformers", what="tokens of every family", cases=_families, run=transformers),
    Check(level="L6", name="types", what="tokens in every claimed type", cases=_dtypes, run=types),
    Check(level="L6", name="kv_types", what="tokens over one-byte caches", cases=_kv_types, run=kv_types),
    Check(level="L6", name="quantized", what="tokens of quantized files", cases=_files, run=quantized),
)
