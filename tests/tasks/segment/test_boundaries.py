"""Our dilation is scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from vitrail.tasks.segment.boundaries import dilated


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (7, 9), (64, 48)])
@pytest.mark.parametrize("reach", [1, 2, 5, 17])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3])
def test_dilation_is_scipys(shape: tuple[int, int], reach: int, share: float) -> None:
    mask = np.random.default_rng(reach).random(shape) < share
    assert (dilated(mask, reach) == ndimage.maximum_filter(mask, size=2 * reach + 1, mode="constant")).all()
    if mask.any():
        assert (dilated(mask, reach) == (ndimage.distance_transform_cdt(~mask, "chessboard") <= reach)).all()
