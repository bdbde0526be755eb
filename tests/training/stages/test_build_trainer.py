"""What feeds a run, made from its settings."""

import pytest

from vitrail.training.settings import Settings
from vitrail.training.stages.build_trainer import augmentation_of


@pytest.mark.parametrize(("crop", "aspect"), [(1.0, 1.0), (0.9, 0.9), (0.5, 0.75)])
def test_a_picture_that_is_kept_whole_is_not_squeezed(crop, aspect):
    settings = Settings().with_values({"augment.crop": crop})
    how = augmentation_of(settings.augment)
    assert how.crop == (crop, 1.0) and how.aspect == pytest.approx((aspect, 1 / aspect))
