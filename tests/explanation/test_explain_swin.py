"""`vitrail.explain` on Swin: each block on its own grid, with its own heads; one sentence for what it has not."""

# ruff: noqa: RUF001  sizes are written as people write them

from __future__ import annotations

import json

import numpy as np
import pytest

import vitrail
from tests.explanation.methods.test_stages import small
from vitrail.errors import VitrailError
from vitrail.explanation.output.explanation_json import as_json
from vitrail.explanation.output.map_png import pictures_of
from vitrail.report.pages.explain_page import page
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

LABELS = ["cat", "dog", "owl"]
GRIDS = [(7, 11), (7, 11), (4, 6), (4, 6), (2, 3)]  # odd: the last tokens hold less than the others
HEADS = [1, 1, 2, 2, 4]


@pytest.fixture(params=["swin-mu", "swinv2-mu"])
def model(request):
    network = small(request.param, image_size=(28, 44))
    return Checkpoint(network, Preprocessing(size=(28, 44), resize="squash"), "classify", LABELS)


@pytest.fixture
def picture():
    return np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)


def test_from_end_to_end(model, picture):
    found = vitrail.explain(model, picture, query=(6, 10), compare=True, walk=True, every_query=True)
    assert found.grids == GRIDS
    assert [block.shape for block in found.attention] == [
        (heads, *grid) for heads, grid in zip(HEADS, GRIDS, strict=True)
    ]
    assert [stage.shape for stage in found.stages] == [(7, 11), (4, 6), (2, 3)]
    assert np.array_equal(found.stages[0], found.maps["relevance"])
    assert [windows is None for windows in found.windows] == [False, False, False, False, True]
    for block, windows in zip(found.attention, found.windows, strict=True):
        if windows is not None:  # nothing outside of the window of its last token
            assert (block[:, windows != windows[-1, -1]] < 1e-30).all()  # a mask is e^-100
    assert (found.query, found.heads) == ("patch 6,10", [0, 1, 2, 3])
    assert set(found.maps) == {"relevance", "weighted_attention", "rollout", "occlusion"}
    assert {"random", *found.maps} == set(found.curves)
    text = page([found], model="swin", checkpoint=model)
    assert "Stage 2, 2 × 3 tokens" in text and "the windows that attention stays in" in text
    sizes = {shown.shape for name, shown in pictures_of(found) if name not in ("attention-all", "components")}
    assert len(sizes) == 1
    assert len(json.loads(json.dumps(as_json(found)))["attention"]) == 5


def test_what_it_has_not_is_one_sentence(model, picture):
    found = vitrail.explain(model, picture)
    assert found.attention is None and "no [CLS] token" in found.notes[-1]
    assert "attention" not in found.maps
    with pytest.raises(VitrailError, match="no .CLS. token: ask for a patch"):
        vitrail.explain(model, picture, query="cls")
    with pytest.raises(VitrailError, match="no head 1: a block has 1, 0 to 0"):
        vitrail.explain(model, picture, query="0,0", heads=[1])
    assert vitrail.explain(model, picture, query="0,0", heads=[1], blocks=[2, 3]).heads == [1]
    with pytest.raises(VitrailError, match="no patch 7,0: the grid has 7 rows and 11 columns"):
        vitrail.explain(model, picture, query="7,0", blocks=[-1])
