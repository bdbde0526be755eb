"""Vectors in clusters, as embeddings of classes are."""

from __future__ import annotations

import numpy as np


def blobs(
    clusters: int, each: int, width: int = 32, noise: float = 0.5, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """(N, D) vectors around random directions, on curved sheets of three dimensions, and the cluster of each."""
    rng = np.random.default_rng(seed)
    vectors = []
    for _ in range(clusters):
        centre, sheet = rng.normal(size=width), rng.normal(size=(3, width))
        inside = rng.normal(size=(each, 3))
        vectors.append(2 * centre + noise * (np.sin(inside) @ sheet) + 0.05 * rng.normal(size=(each, width)))
    return np.concatenate(vectors).astype(np.float32), np.repeat(np.arange(clusters), each)
