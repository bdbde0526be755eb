"""What feeds a run, made from its settings."""

from types import SimpleNamespace
from typing import Any

import pytest

from vitrail.training.building import feed_of
from vitrail.training.settings import Settings


@pytest.mark.parametrize(("crop", "aspect"), [(1.0, 1.0), (0.9, 0.9), (0.5, 0.75)])
def test_a_picture_that_is_kept_whole_is_not_squeezed(crop, aspect):
    nothing: Any = SimpleNamespace()
    settings = Settings().with_values({"augment.crop": crop})
    how = feed_of(settings, nothing, nothing, nothing, nothing, (0, 1)).augmentation
    assert how.crop == (crop, 1.0) and how.aspect == pytest.approx((aspect, 1 / aspect))
