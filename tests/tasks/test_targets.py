"""Masks and boxes go where the picture goes, whatever augmentation does to it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vitrail.data.loading.augment import Augmentation, augment
from vitrail.data.loading.transforms import letterbox_of, prepare
from vitrail.tasks.dense_options import IGNORE
from vitrail.tasks.detect.box_targets import BoxTargets
from vitrail.tasks.detect.boxes import Boxes
from vitrail.tasks.segment.mask_targets import MaskTargets
from vitrail.tasks.targets import LazyTargets, WholeImageTargets, maps_of
from vitrail.weights.preprocessing import Preprocessing

COUNT = 24
STILL = Augmentation(crop=(1.0, 1.0), aspect=(1.0, 1.0), flip="none", policy="none")
WAYS = {
    "still": STILL,
    "crops": Augmentation(crop=(0.3, 0.9), flip="none", policy="none"),
    "flips": Augmentation(crop=(1.0, 1.0), aspect=(1.0, 1.0), flip="both", policy="none"),
    "trivial": Augmentation(crop=(0.6, 1.0), flip="both", policy="trivial"),
    "rand": Augmentation(crop=(0.5, 1.0), flip="both", policy="rand", changes=3, strength=0.9),
    "colour": Augmentation(crop=(0.5, 1.0), flip="horizontal", policy="colour"),
}
SIZES = {"square": (40, 40), "tall": (60, 30), "odd": (37, 53)}


class BatchIndices:
    """A mask that is held in memory."""

    def __init__(self, values: NDArray[np.uint8]) -> None:
        self.values = values
        self.size = values.shape[0], values.shape[1]

    def read(self) -> NDArray[np.uint8]:
        return self.values


def scene(place: int, size: tuple[int, int]) -> tuple[NDArray[np.uint8], tuple[float, float, float, float]]:
    """A mask with a rectangle of class 1 on class 0, and the rectangle's box."""
    random = np.random.default_rng(place)
    height, width = size
    top, left = random.integers(2, height // 3), random.integers(2, width // 3)
    bottom, right = random.integers(height // 2, height - 2), random.integers(width // 2, width - 2)
    mask = np.zeros(size, np.uint8)
    mask[top:bottom, left:right] = 1
    return mask, (float(left), float(top), float(right), float(bottom))


def moved(how: Augmentation, size: tuple[int, int], fit: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pictures that show the mask (white on black), the moved masks, and the moved boxes."""
    scenes = [scene(place, size) for place in range(COUNT)]
    pixels = torch.from_numpy(np.stack([np.repeat(255 * mask[..., None], 3, axis=2) for mask, _ in scenes]))
    places = np.arange(COUNT)
    sizes = np.tile(np.array(size), (COUNT, 1))
    prep = Preprocessing(size=(32, 48), resize=fit, mean=(0.0, 0.0, 0.0))
    images, maps = augment(pixels, sizes, prep, how, seed=3, epoch=1, indices=places)
    masks = MaskTargets([BatchIndices(mask) for mask, _ in scenes], size)  # type: ignore[misc]
    boxes = BoxTargets([Boxes((box,), (1,), (False,), size) for _, box in scenes])
    return images, masks.moved(masks.take(places), maps, (32, 48)), boxes.moved(boxes.take(places), maps, (32, 48))


@pytest.mark.parametrize("fit", ["pad", "squash", "window"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("name", [name for name in WAYS if name not in ("rand", "trivial", "colour")])
def test_masks_and_boxes_move_with_the_picture(name: str, size: tuple[int, int], fit: str) -> None:
    images, masks, boxes = moved(WAYS[name], size, fit)
    grey = images.mean(1)
    for picture, mask, box in zip(grey, masks, boxes, strict=True):
        sure = (picture < 0.02) | (picture > 0.98)  # away from blurred edges
        known = sure & (mask != IGNORE)
        assert (mask[known] == (picture[known] > 0.5).long()).all()
        white = (picture > 0.5).nonzero()
        if not len(white) or box[0, 0] < 0:
            continue
        (top, left), (bottom, right) = white.amin(0).tolist(), (white.amax(0) + 1).tolist()
        _, x, y, w, h = box[0].tolist()
        told = [(y - h / 2) * 32, (x - w / 2) * 48, (y + h / 2) * 32, (x + w / 2) * 48]
        np.testing.assert_allclose(told, [top, left, bottom, right], atol=1.01)


@pytest.mark.parametrize("name", ["trivial", "rand"])
def test_a_turned_object_stays_inside_of_its_box(name: str) -> None:
    _, masks, boxes = moved(WAYS[name], (40, 40), "pad")
    for mask, box in zip(masks, boxes, strict=True):
        inside = (mask == 1).nonzero()
        if box[0, 0] < 0 or not len(inside):
            continue
        _, x, y, w, h = box[0].tolist()
        assert ((inside[:, 0] + 0.5) / 32 >= y - h / 2 - 0.04).all()
        assert ((inside[:, 0] + 0.5) / 32 <= y + h / 2 + 0.04).all()
        assert ((inside[:, 1] + 0.5) / 48 >= x - w / 2 - 0.04).all()
        assert ((inside[:, 1] + 0.5) / 48 <= x + w / 2 + 0.04).all()


def test_colour_changes_leave_masks_and_boxes_in_place() -> None:
    still = moved(WAYS["colour"], (40, 40), "squash")
    plain = moved(Augmentation(crop=(0.5, 1.0), flip="horizontal", policy="none"), (40, 40), "squash")
    assert torch.equal(still[1], plain[1]) and torch.equal(still[2], plain[2])
    assert not torch.equal(still[0], plain[0])


def test_a_box_that_left_the_picture_is_no_longer_looked_for() -> None:
    truths = BoxTargets([Boxes(((0, 0, 10, 10), (60, 60, 100, 100)), (0, 1), (False, False), (100, 100))])
    maps = torch.eye(3)[None].clone()
    maps[0, 0, 0] = maps[0, 1, 1] = 0.5
    maps[0, :2, 2] = 0.5  # the lower right quarter
    (found,) = truths.moved(truths.take(np.array([0])), maps, (64, 64))
    torch.testing.assert_close(found, torch.tensor([[1.0, 0.6, 0.6, 0.8, 0.8]]))
    maps[0, :2, 2] = -0.5  # the upper left one: of the large box a twenty-fifth would be left
    (found,) = truths.moved(truths.take(np.array([0])), maps, (64, 64))
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.1, 0.1, 0.2, 0.2]]))


def test_crowds_and_pictures_without_objects_have_nothing_to_learn() -> None:
    nothing = Boxes((), (), (), (20, 30))
    crowd = Boxes(((1, 2, 11, 12),), (3,), (True,), (20, 30))
    truths = BoxTargets([nothing, crowd])
    maps = torch.eye(3).repeat(2, 1, 1)
    assert truths.moved(truths.take(np.array([0, 1])), maps, (8, 8)).shape == (2, 0, 5)
    assert truths.own(0).shape == (0, 6)
    assert truths.own(1).tolist() == [[3, 1, 2, 11, 12, 1]]
    assert truths.size(1) == (20, 30)


def test_many_boxes_fill_up_with_no_class() -> None:
    many = Boxes(tuple((i, i, i + 5.0, i + 5.0) for i in range(300)), (0,) * 300, (False,) * 300, (400, 400))
    one = Boxes(((0, 0, 40, 40),), (2,), (False,), (400, 400))
    truths = BoxTargets([many, one])
    found = truths.moved(truths.take(np.array([0, 1])), torch.eye(3).repeat(2, 1, 1), (400, 400))
    assert found.shape == (2, 300, 5)
    assert (found[1, 1:, 0] == -1).all() and found[1, 0].tolist() == pytest.approx([2, 0.05, 0.05, 0.1, 0.1])


@pytest.mark.parametrize("resize", ["pad", "squash"])
@pytest.mark.parametrize("own", [(40, 60), (61, 33), (8, 8), (200, 10)])
def test_a_frame_says_where_prepare_puts_the_picture(resize: str, own: tuple[int, int]) -> None:
    how = Preprocessing(size=(32, 48), resize=resize, mean=(0.0,) * 3, std=(1.0,) * 3, interpolation="nearest")
    prepared = prepare(np.full((*own, 3), 255, np.uint8), how)
    frame = letterbox_of(own, how)
    top, left, bottom, right = frame.inside
    white = np.zeros((32, 48), bool)
    white[top:bottom, left:right] = True
    np.testing.assert_array_equal(prepared[..., 0] == 255, white)
    masks = MaskTargets([BatchIndices(np.ones(own, np.uint8))], own)  # type: ignore[list-item]
    target = masks.moved(masks.take(np.array([0])), maps_of([frame]), frame.input)[0].numpy()
    np.testing.assert_array_equal(target == 1, white)
    assert set(np.unique(target)) <= {1, IGNORE}


def test_masks_of_nothing_known_stay_so() -> None:
    masks = MaskTargets([BatchIndices(np.full((20, 20), IGNORE, np.uint8))], (20, 20))  # type: ignore[list-item]
    maps = torch.eye(3)[None]
    assert (masks.moved(masks.take(np.array([0])), maps, (8, 8)) == IGNORE).all()


def test_labels_are_the_same_wherever_the_picture_goes() -> None:
    truths = WholeImageTargets(torch.tensor([4, 5, 6]))
    assert truths.moved(truths.take(np.array([2, 0])), torch.eye(3).repeat(2, 1, 1), (8, 8)).tolist() == [6, 4]


def test_truths_are_read_when_they_are_asked_for() -> None:
    truths = BoxTargets([Boxes(((0, 0, 1, 1),) * n, (0,) * n, (False,) * n, (9, 9)) for n in range(5)])
    assert [len(one) for one in LazyTargets(truths, [3, 1])] == [3, 1]
    assert [len(one) for one in LazyTargets(truths, 5, most=2)] == [0, 1]
