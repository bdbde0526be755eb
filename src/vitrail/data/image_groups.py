"""Which images are not independent of each other: those of one group, and those that look the same.

A score is sure to the extent that new images would give the same. Ten photos of one object are not ten objects, so
intervals are made by drawing groups (`tasks/shared/intervals.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitrail.data.checks.perceptual_hash import Signature, alike, is_flat
from vitrail.data.loading.split import make_units
from vitrail.dataset import Item


def group_images(items: Sequence[Item], signatures: Sequence[Signature]) -> list[int] | None:
    """The number of each image's group; None where every image is a group of its own.

    signatures: of what the items look like, in their order.
    """
    looks = list(range(len(items)))  # the first image that each one looks like
    telling = [index for index, one in enumerate(signatures) if not is_flat(one.small)]
    if len(telling) > 1:
        hashes = np.array([signatures[index].hash for index in telling], dtype=np.uint64)
        for same in alike(hashes, np.stack([signatures[index].small for index in telling])):
            for place in same:
                looks[telling[place]] = telling[same[0]]
    units, _ = make_units([str(look).encode() for look in looks], [item.group for item in items], seed=0)
    return units if len(set(units)) < len(units) else None
