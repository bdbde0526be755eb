"""The nearest neighbours of many vectors at once, by cosine: exact, by blocks of a matrix product.

Memory is bounded whatever the number of vectors: one block of similarities is held at a time. All with all is a square:
for more than EXACT vectors, each is compared with those of the nearest cells only, which finds nearly all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

CELLS = 1 << 24  # similarities of a block: 64 MB
EXACT = 150_000  # vectors of which each is compared with every other
CELLS_SEARCHED = 24  # of the square root of all vectors
CHUNK = 64  # of them are looked at together; see `_largest`

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Neighbours:
    """Of M vectors, the nearest first."""

    similarity: NDArray[np.float32]  # (M, k) cosine
    index: NDArray[np.int64]  # (M, k) places among those that were searched


def nearest_neighbours(queries: Vectors, base: Vectors, k: int) -> Neighbours:
    """The k of base (N, D) that are nearest to each query (M, D); fewer where base has fewer."""
    return _search(unit_vectors(queries), unit_vectors(base), min(k, len(base)), same=False)


def neighbours_of_all(vectors: Vectors, k: int) -> Neighbours:
    """The k others that are nearest to each vector (N, D); fewer where there are fewer."""
    unit, k = unit_vectors(vectors), min(k, len(vectors) - 1)
    return _search(unit, unit, k, same=True) if len(unit) <= EXACT else _search_cells(unit, k)


def unit_vectors(vectors: Vectors) -> Tensor:
    """(N, D) of length 1, whose dot products are cosines."""
    return F.normalize(torch.from_numpy(np.require(vectors, np.float32, "W")), dim=1)  # of a file they are read-only


# ---- parts


def _search(queries: Tensor, base: Tensor, k: int, same: bool) -> Neighbours:
    """same: queries and base are one set, and no vector is its own neighbour."""
    similarity = np.empty((len(queries), max(k, 0)), np.float32)
    index = np.empty(similarity.shape, np.int64)
    if not similarity.size:
        return Neighbours(similarity, index)
    rows = max(1, CELLS // len(base))
    for start in range(0, len(queries), rows):
        block = queries[start : start + rows] @ base.T  # (rows, N)
        if same:
            own = torch.arange(len(block))
            block[own, start + own] = -torch.inf
        largest, place = _largest(block, k)
        similarity[start : start + rows], index[start : start + rows] = largest.numpy(), place.numpy()
    return Neighbours(similarity, index)


def _search_cells(unit: Tensor, k: int) -> Neighbours:
    """Vectors are sorted into about sqrt(N) cells around some of them; the neighbours of a cell's vectors are looked
    for in that cell and in those around it."""
    centres = unit[torch.linspace(0, len(unit) - 1, round(len(unit) ** 0.5)).long()]
    for _ in range(3):  # the centres move into the middle of their cells
        cell = torch.cat([(some @ centres.T).argmax(1) for some in unit.split(max(1, CELLS // len(centres)))])
        centres = F.normalize(torch.zeros_like(centres).index_add_(0, cell, unit), dim=1)
    order = cell.argsort(stable=True)
    members = order.split(torch.bincount(cell, minlength=len(centres)).tolist())
    around = (centres @ centres.T).topk(min(CELLS_SEARCHED, len(centres)), dim=1).indices.tolist()
    similarity = np.full((len(unit), k), -1.0, np.float32)
    index = np.zeros(similarity.shape, np.int64)
    for own, near in zip(members, around, strict=True):
        if not len(own):  # its centre is that of another cell too, which has them all
            continue
        others = torch.cat([members[place] for place in near])
        for some in own.split(max(1, CELLS // len(others))):
            block = unit[some] @ unit[others].T
            block[some[:, None] == others] = -torch.inf
            largest, place = _largest(block, min(k, len(others) - 1))
            rows = some.numpy()
            similarity[rows, : largest.shape[1]] = largest.numpy()
            index[rows, : largest.shape[1]] = others[place].numpy()
    return Neighbours(similarity, index)


def _largest(block: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`block.topk(k)`, in one fast pass over the block instead of a slow one: the k largest of a row lie in the k
    chunks with the largest maxima, so only these are searched."""
    rows, columns = block.shape
    chunks = columns // CHUNK
    if chunks <= 4 * k:
        return block.topk(k, dim=1)
    whole = block[:, : chunks * CHUNK].reshape(rows, chunks, CHUNK)
    best = whole.amax(2).topk(k, dim=1).indices  # (rows, k)
    candidates = (best[..., None] * CHUNK + torch.arange(CHUNK)).flatten(1)  # (rows, k CHUNK)
    rest = torch.arange(chunks * CHUNK, columns).expand(rows, -1)
    candidates = torch.cat([candidates, rest], dim=1)
    values, place = block.gather(1, candidates).topk(k, dim=1)
    return values, candidates.gather(1, place)
