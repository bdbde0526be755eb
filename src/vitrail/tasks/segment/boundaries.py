"""How well the outlines of classes are met: boundary F1, after Csurka et al. 2013.

A class's boundary is its pixels with a neighbour (left, right, above, below) of another class; the picture's edge is
none, and where the truth is unknown there is none either. A boundary pixel is met when the other boundary of the same
class has one within the tolerance: 0.75 % of the picture's diagonal, at least 1 pixel, along rows and along columns.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 0.0075  # of the diagonal
COUNTS = 4  # of each class: answered boundary pixels, how many of them are met, true ones, how many of them are met

Mask = NDArray[np.bool_]
Classes = NDArray[np.uint8]


def tolerance(height: int, width: int) -> int:
    return max(1, round(TOLERANCE * math.hypot(height, width)))


def boundary_counts(answer: Classes, truth: Classes, classes: int, ignore: int) -> NDArray[np.int64]:
    """(K, 4) of one picture. Both are class numbers (H, W); what the truth leaves open counts on neither side."""
    counts = np.zeros((classes, COUNTS), np.int64)
    known = truth != ignore
    answer = np.where(known, answer, np.uint8(ignore))
    reach = tolerance(*truth.shape)
    answered, true = (_edges(one, known) for one in (answer, truth))
    occurring = np.union1d(np.unique(answer[answered]), np.unique(truth[true]))
    for k in occurring:
        answer_edges, true_edges = answered & (answer == k), true & (truth == k)
        box = _around(answer_edges | true_edges, reach)  # a small thing in a large picture costs little
        answer_edges, true_edges = answer_edges[box], true_edges[box]
        near_truth, near_answer = dilated(true_edges, reach), dilated(answer_edges, reach)
        counts[k] = (
            answer_edges.sum(),
            (answer_edges & near_truth).sum(),
            true_edges.sum(),
            (true_edges & near_answer).sum(),
        )
    return counts


def _edges(classes: Classes, known: Mask) -> Mask:
    """Pixels with a known neighbour of another class."""
    edge = np.zeros(classes.shape, bool)
    for one, other in (
        (np.s_[:, 1:], np.s_[:, :-1]),
        (np.s_[1:], np.s_[:-1]),
    ):
        differs = (classes[one] != classes[other]) & known[one] & known[other]
        edge[one] |= differs
        edge[other] |= differs
    return edge


def _around(mask: Mask, margin: int) -> tuple[slice, slice]:
    """The smallest box with all of the mask and a margin."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    top, left = max(0, rows[0] - margin), max(0, columns[0] - margin)
    return slice(top, rows[-1] + margin + 1), slice(left, columns[-1] + margin + 1)


def dilated(mask: Mask, reach: int) -> Mask:
    """True wherever something within `reach` pixels, along rows and along columns, is.

    scipy.ndimage gives the same, but slower: on 480 x 640 with a reach of 6, maximum_filter takes 7 times as long,
    distance_transform_cdt 13 times and binary_dilation 20 times or more (tests/tasks/segment/test_boundaries.py
    compares the results)."""
    return _dilated_down(_dilated_down(mask, reach).T, reach).T


def _dilated_down(mask: Mask, reach: int) -> Mask:
    """Along the first axis, by shifts of 1, 2, 4 ... pixels: a long reach costs hardly more than a short one."""
    height, width = mask.shape
    wide = np.zeros((height + 2 * reach, width), bool)
    wide[reach : reach + height] = mask
    length, covered = 2 * reach + 1, 1
    while covered < length:  # row i has seen rows i to i + covered - 1
        step = min(covered, length - covered)
        wide = wide[: len(wide) - step] | wide[step:]
        covered += step
    return wide[:height]
