"""Images that are nearly the same to a model: bursts, crops, mirror images, other sizes and compressions.

What is near depends on the model and on the place: two different daisies may be nearer to each other than two copies of
an odd picture, of which one is cropped. So a distance is compared with the distances around it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from vitrail.search.nearest_neighbours import Neighbours

CLOSE = 0.35  # times the distance to farther neighbours of both images: chosen by looking at 80 pairs of flowers
SURE = 0.1  # times the usual distance to the nearest neighbour: near enough even where many copies lie together
FARTHER = 5  # the last of the neighbours tell what is usual around an image
SAME = 1e-6  # what rounding makes of the distance between equal vectors


def near_duplicates(neighbours: Neighbours) -> list[list[int]]:
    """Groups of places, the closest pair first; each group sorted. Groups hang together by pairs that are near.

    neighbours: about 15 of each; a group with more images than that is found if its distances are tiny."""
    count, k = neighbours.index.shape
    if not k:
        return []
    near = _near(1 - neighbours.similarity, neighbours.index)
    rows, columns = np.repeat(np.arange(count), k)[near.ravel()], neighbours.index[near]
    pairs = sparse.csr_array((np.ones(len(rows), bool), (rows, columns)), shape=(count, count))
    number = sparse.csgraph.connected_components(pairs, directed=False)[1]
    order = np.argsort(number, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(number[order])) + 1)
    several = [group for group in groups if len(group) > 1]
    several.sort(key=lambda group: -float(neighbours.similarity[group, 0].max()))
    return [group.tolist() for group in several]


def _near(distance: NDArray[np.float32], index: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(N, k): whether each image and its neighbour are nearly the same."""
    around = distance[:, -FARTHER:].mean(axis=1)
    local = CLOSE * np.minimum(around[:, None], around[index])
    anywhere = SURE * np.median(distance[:, 0])
    return distance <= np.maximum(local, anywhere) + SAME
