"""Small truths about boxes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrail.tasks.detect.box_geometry import area, distinct, giou, iou, pairwise, to_centres, to_corners

SIDES = st.floats(0.001, 1.0)
BOXES = st.lists(st.tuples(SIDES, SIDES, SIDES, SIDES), min_size=1, max_size=20)


@given(BOXES)
def test_there_and_back(boxes):
    centres = torch.tensor(boxes, dtype=torch.float64)
    assert torch.allclose(to_centres(to_corners(centres)), centres, atol=1e-12)
    assert torch.allclose(to_corners(to_centres(to_corners(centres))), to_corners(centres), atol=1e-12)
    assert torch.allclose(area(to_corners(centres)), centres[:, 2] * centres[:, 3], atol=1e-12)


@given(BOXES, BOXES)
def test_overlap_is_between_its_bounds_and_the_same_both_ways(first, second):
    a, b = (to_corners(torch.tensor(boxes, dtype=torch.float64)) for boxes in (first, second))
    overlap, general = pairwise(iou, a, b), pairwise(giou, a, b)
    assert overlap.shape == (len(a), len(b))
    assert ((overlap >= 0) & (overlap <= 1 + 1e-9)).all()
    assert ((general > -1 - 1e-9) & (general <= overlap + 1e-9)).all()
    assert torch.allclose(overlap, pairwise(iou, b, a).T)
    assert torch.allclose(general, pairwise(giou, b, a).T)


@given(BOXES)
def test_a_box_overlaps_itself_wholly(boxes):
    a = to_corners(torch.tensor(boxes, dtype=torch.float64))
    assert torch.allclose(iou(a, a), torch.ones(len(a), dtype=torch.float64))
    assert torch.allclose(giou(a, a), torch.ones(len(a), dtype=torch.float64))


@pytest.mark.parametrize(
    ("other", "overlap", "general"),
    [
        ((0.0, 0.0, 2.0, 2.0), 1.0, 1.0),
        ((1.0, 0.0, 3.0, 2.0), 2 / 6, 2 / 6),
        ((0.0, 0.0, 1.0, 1.0), 1 / 4, 1 / 4),
        ((2.0, 0.0, 4.0, 2.0), 0.0, 0.0),  # they touch: nothing shared, nothing empty between
        ((4.0, 0.0, 6.0, 2.0), 0.0, -4 / 12),
        ((2.0, 2.0, 4.0, 4.0), 0.0, -8 / 16),
    ],
)
def test_known_overlaps(other, overlap, general):
    one, two = torch.tensor([0.0, 0.0, 2.0, 2.0]), torch.tensor(other)
    assert iou(one, two).item() == pytest.approx(overlap)
    assert giou(one, two).item() == pytest.approx(general)


def test_boxes_without_area_do_not_divide_by_zero():
    point = torch.tensor([0.5, 0.5, 0.5, 0.5])
    assert iou(point, point).item() == 0
    assert torch.isfinite(giou(point, point))


def test_of_boxes_of_one_object_the_best_is_left():
    first = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 9], [50, 50, 60, 60], [0, 0, 10, 10], [0, 0, 8, 8]])
    labels = torch.tensor([0, 0, 0, 1, 0])
    assert distinct(first, labels, 0.7).tolist() == [0, 2, 3, 4]
    assert distinct(first, labels, 0.5).tolist() == [0, 2, 3]
    assert distinct(first[:0], labels[:0], 0.5).tolist() == []


def test_one_that_is_suppressed_suppresses_none():
    chain = torch.tensor(
        [[0.0, 0, 10, 10], [2, 0, 12, 10], [4, 0, 14, 10]]
    )  # neighbours overlap by 2/3, the ends by 3/7
    assert distinct(chain, torch.zeros(3), 0.6).tolist() == [0, 2]


def test_they_agree_with_torchvision():
    from torchvision.ops import box_iou, generalized_box_iou

    generator = torch.Generator().manual_seed(0)
    a, b = (to_corners(torch.rand(30, 4, generator=generator)) for _ in range(2))
    assert torch.allclose(pairwise(iou, a, b), box_iou(a, b), atol=1e-6)
    assert torch.allclose(pairwise(giou, a, b), generalized_box_iou(a, b), atol=1e-6)
