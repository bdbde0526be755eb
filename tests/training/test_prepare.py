"""What a run works on: the size that pictures are kept at, and their colours."""

import dataclasses

import numpy as np
import pytest
import torch

from vitrail.data.store import Kept
from vitrail.training.prepare import colours, prepare_data, stored_shape
from vitrail.training.progress import Progress
from vitrail.training.settings import Data
from vitrail.weights.preprocessing import Preprocessing


@pytest.fixture
def prepared(pictures):
    return prepare_data(str(pictures), Data(), 0, Progress(None, None))


@pytest.mark.parametrize(
    ("own", "size", "kept"),
    [
        ((32, 32), (32, 32), (32, 32)),  # never larger than they are
        ((32, 32), (224, 224), (32, 32)),
        ((480, 640), (128, 128), (147, 196)),  # the shorter side covers the model's input, at the aspect of the set
        ((200, 2000), (128, 128), (147, 512)),  # a panorama, within reason
        ((480, 640), (128, 256), (221, 294)),
    ],
)
def test_pictures_are_kept_at_their_aspect(prepared, own, size, kept):
    shape = stored_shape(dataclasses.replace(prepared, sizes=own), Preprocessing(size=size))
    assert (shape.height, shape.width) == kept


def test_colours_are_mean_and_deviation():
    pixels = np.random.default_rng(0).integers(0, 256, (120, 4, 5, 2), dtype=np.uint8)
    mean, std = colours(Kept(pixels, np.full((120, 2), 4), {}), 120)
    flat = torch.from_numpy(pixels).flatten(0, 2).double() / 255
    assert mean == pytest.approx(flat.mean(0).tolist(), abs=1e-3)
    assert std == pytest.approx(flat.std(0).tolist(), abs=1e-3)
    assert colours(Kept(np.zeros_like(pixels), np.full((120, 2), 4), {}), 120)[1] == (0.01, 0.01)


def test_broken_files_change_the_fingerprint_and_are_a_finding(prepared):
    path = prepared.train[0].path
    rest = prepared.without({path: None})
    assert len(rest.train) == len(prepared.train) - 1 and rest.fingerprint != prepared.fingerprint
    assert rest.findings[-1].kind == "broken" or rest.findings[0].kind == "broken"
    assert prepared.without({}) is prepared
