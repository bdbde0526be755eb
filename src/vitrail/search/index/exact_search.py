"""Exact search: the dot product of a query with every vector, at the speed of memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitrail.search.embeddings import Vectors

BLOCK = 1 << 15  # vectors at a time: of 384 numbers they take 50 MB, read once from a memory-mapped file


def top_places(
    vectors: Vectors, queries: Vectors, top: int, dead: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.int64], Vectors]:
    """The rows of vectors (n, D) whose dot products with each query (Q, D) are the largest, best first, and these.

    Both are (Q, k), k the smaller of `top` and n. dead: (n,) rows that do not count: they come last, with -inf.
    """
    places: list[NDArray[np.int64]] = [np.empty((len(queries), 0), np.int64)]
    scores: list[Vectors] = [np.empty((len(queries), 0), np.float32)]
    for start in range(0, len(vectors), BLOCK):
        products: Vectors = queries @ vectors[start : start + BLOCK].T  # (Q, b)
        if dead is not None:
            products[:, dead[start : start + BLOCK]] = -np.inf
        best = _largest(products, top)
        places.append(best + start)
        scores.append(np.take_along_axis(products, best, axis=1))
    found, values = np.concatenate(places, axis=1), np.concatenate(scores, axis=1)
    best = _largest(values, top)
    found, values = np.take_along_axis(found, best, axis=1), np.take_along_axis(values, best, axis=1)
    order = np.lexsort((found, -values))  # of equals the one that came first
    return np.take_along_axis(found, order, axis=1), np.take_along_axis(values, order, axis=1)


def _largest(values: Vectors, top: int) -> NDArray[np.int64]:
    """(Q, n) -> (Q, k): the places of the k largest, in no order."""
    top = min(top, values.shape[1])
    if top == values.shape[1]:
        return np.broadcast_to(np.arange(top), values.shape).copy()
    return np.argpartition(values, -top, axis=1)[:, -top:].astype(np.int64)
