"""Images that are nearly the same to a model: bursts, crops, mirror images, other sizes and compressions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from vitrail.search.nearest_neighbours import Neighbours

CLOSE = 0.35  # times the usual distance to the nearest neighbour


def near_duplicates(neighbours: Neighbours, threshold: float) -> list[list[int]]:
    """Groups of places, the closest pair first; each group sorted. threshold: the least cosine of a pair."""
    count, k = neighbours.index.shape
    if not k:
        return []
    close = neighbours.similarity >= threshold
    rows, columns = np.repeat(np.arange(count), k)[close.ravel()], neighbours.index[close]
    pairs = sparse.csr_array((np.ones(len(rows), bool), (rows, columns)), shape=(count, count))
    number = sparse.csgraph.connected_components(pairs, directed=False)[1]
    order = np.argsort(number, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(number[order])) + 1)
    several = [group for group in groups if len(group) > 1]
    closest: NDArray[np.float32] = neighbours.similarity[:, 0]
    return [group.tolist() for group in sorted(several, key=lambda group: -float(closest[group].max()))]


def near_threshold(neighbours: Neighbours) -> float:
    """The cosine from which on two images are nearly the same: their distance is well below what is usual between
    nearest neighbours here. So it suits every model, whatever its cosines are like."""
    if not neighbours.similarity.size:
        return 1.0
    return float(1 - CLOSE * np.median(1 - neighbours.similarity[:, 0]))
