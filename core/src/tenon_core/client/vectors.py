"""From the engine's raw vectors to what was asked for: cut, normalized, turned into probabilities; scores of pairs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tenon_core.sampling.pooling import PoolingFacts, PoolingParams

Vectors = npt.NDArray[np.float32]


def finished(vectors: Vectors, params: PoolingParams, facts: PoolingFacts) -> Vectors:
    """float32 [rows, width] as the request wants it. Cutting comes before normalizing (arXiv 2205.13147)."""
    if facts.kind == "classify":
        wanted = params.use_activation is not False
        return activated(vectors, facts.activation) if wanted else vectors
    if params.dimensions is not None:
        vectors = vectors[:, : params.dimensions]
    normalize = params.normalize
    if normalize is None:
        normalize = facts.normalize if params.use_activation is None else params.use_activation
    return normalized(vectors) if normalize else vectors


def normalized(vectors: Vectors) -> Vectors:
    """Each row to length 1; a row of zeros stays what it is."""
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=-1, keepdims=True)
    result: Vectors = (wide / np.maximum(lengths, 1e-12)).astype(np.float32)
    return result


def activated(scores: Vectors, activation: str) -> Vectors:
    """Scores as "softmax" over labels, "sigmoid" of each, or "identity"."""
    wide = scores.astype(np.float64)
    if activation == "softmax":
        raised = np.exp(wide - wide.max(axis=-1, keepdims=True))
        wide = raised / raised.sum(axis=-1, keepdims=True)
    elif activation == "sigmoid":
        wide = np.where(wide >= 0, 1, np.exp(np.minimum(wide, 0))) / (1 + np.exp(-np.abs(wide)))
    result: Vectors = wide.astype(np.float32)
    return result


def cosine(first: Vectors, second: Vectors) -> float:
    """The cosine of the angle between two vectors."""
    return float((normalized(first[None]).astype(np.float64) @ normalized(second[None]).astype(np.float64).T)[0, 0])
