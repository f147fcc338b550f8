"""Checkpoints and their references, made once a subject in a folder that goes away with it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..subject import Subject
from ..truth.equality import LogitsFn, Reference, hf_reference
from .tiny import TinyModel, make_tiny

STORE = "models"


@dataclass(slots=True, kw_only=True)
class ModelStore:
    """Tiny models by name and seed, and their Transformers references."""

    folder: tempfile.TemporaryDirectory[str] = field(default_factory=lambda: tempfile.TemporaryDirectory("tenon-kit"))
    _models: dict[tuple[str, int], TinyModel] = field(default_factory=dict)
    _references: dict[Path, Reference] = field(default_factory=dict)

    @classmethod
    def of(cls, subject: Subject) -> ModelStore:
        """The subject's store."""
        if STORE not in subject.shared:
            subject.shared[STORE] = cls()
        store: ModelStore = subject.shared[STORE]
        return store

    @property
    def path(self) -> Path:
        """Where they lie."""
        return Path(self.folder.name)

    def tiny(self, name: str, seed: int = 0) -> TinyModel:
        """One of `models.tiny.TINY`, saved."""
        if (name, seed) not in self._models:
            folder = self.path / f"seed{seed}"
            folder.mkdir(exist_ok=True)
            self._models[name, seed] = make_tiny(name, folder, seed=seed)
        return self._models[name, seed]

    def reference(self, path: Path, model: Any) -> Reference:
        """The Transformers reference of a checkpoint."""
        if path not in self._references:
            found = hf_reference(model)
            self._references[path] = Reference(narrow=_remembering(found.narrow), wide=_remembering(found.wide))
        return self._references[path]

    def close(self) -> None:
        """Remove the folder."""
        self.folder.cleanup()


def _remembering(logits: LogitsFn) -> LogitsFn:
    """The same logits: most checks of a checkpoint expect the same tokens after the same prompts."""
    cached = lru_cache(maxsize=32)(logits)
    return lambda tokens: cached(tuple(tokens))
