"""Augmentation: geometry that is exact where it should be, changes that stay in range, and randomness by image."""

import numpy as np
import pytest
import torch

from vitrail.data.loading.augment import CHANGES, RECOLOUR, Augmentation, augment, crop_maps, erased, move_maps, sample
from vitrail.weights.preprocessing import Preprocessing

STILL = Augmentation(crop=(1.0, 1.0), aspect=(1.0, 1.0), flip="none", policy="none")


def pictures(count: int, height: int = 16, width: int = 16, channels: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, height, width, channels), generator=generator, dtype=torch.uint8)


def run(pixels: torch.Tensor, how: Augmentation, epoch: int = 0, indices=None, target=(16, 16), fit="crop", sizes=None):
    indices = np.arange(len(pixels)) if indices is None else np.asarray(indices)
    sizes = np.full((len(pixels), 2), 16) if sizes is None else np.asarray(sizes)
    prep = Preprocessing(size=target, resize=fit).for_channels(pixels.shape[3])
    return augment(pixels, sizes, prep, how, seed=0, epoch=epoch, indices=indices)[0]


def test_nothing_asked_changes_nothing():
    pixels = pictures(4)
    assert torch.allclose(run(pixels, STILL), pixels.permute(0, 3, 1, 2) / 255, atol=1e-6)


def test_an_image_gets_the_same_in_any_batch_and_another_in_another_epoch():
    pixels, how = pictures(8), Augmentation(erase=0.5)
    together = run(pixels, how)
    alone = run(pixels[[5, 2]], how, indices=[5, 2])
    assert torch.equal(alone, together[[5, 2]])
    assert not torch.equal(run(pixels, how, epoch=1), together)


def test_a_flip_is_a_mirror_image_and_half_of_them_are_flipped():
    pixels = pictures(400)
    plain = pixels.permute(0, 3, 1, 2) / 255
    result = run(pixels, Augmentation(crop=(1, 1), aspect=(1, 1), flip="horizontal", policy="none"))
    same = torch.isclose(result, plain, atol=1e-5).flatten(1).all(1)
    mirrored = torch.isclose(result, plain.flip(3), atol=1e-5).flatten(1).all(1)
    assert (same ^ mirrored).all() and 150 < mirrored.sum() < 250
    again = run(pixels, Augmentation(crop=(1, 1), aspect=(1, 1), flip="horizontal", policy="none"), epoch=1)
    assert torch.allclose(again, result.flip(3), atol=1e-5)  # every image shows its other side in the next epoch
    upside_down = run(pixels, Augmentation(crop=(1, 1), aspect=(1, 1), flip="vertical", policy="none"))
    assert torch.isclose(upside_down, plain.flip(2), atol=1e-5).flatten(1).all(1).any()


@pytest.mark.parametrize(("size", "target"), [((60, 40), (16, 16)), ((30, 90), (16, 24)), ((50, 50), (24, 16))])
def test_a_crop_keeps_to_the_picture_and_to_its_aspect(size, target):
    draw = torch.rand(500, 4, generator=torch.Generator().manual_seed(0))
    how = Augmentation(crop=(0.2, 1.0), aspect=(1.0, 1.0))
    maps = crop_maps(torch.tensor([size] * 500).float(), target, "crop", how, draw)
    half_width, half_height = maps[:, 0, 0], maps[:, 1, 1]
    assert (half_width + maps[:, 0, 2].abs()).max() <= 1 + 1e-5 and (
        half_height + maps[:, 1, 2].abs()
    ).max() <= 1 + 1e-5
    aspect = half_width * size[1] / (half_height * size[0])
    assert torch.allclose(aspect, torch.full_like(aspect, target[1] / target[0]), rtol=1e-4)


def test_squash_takes_the_whole_picture_whatever_its_aspect():
    pixels = pictures(2)
    assert torch.allclose(run(pixels, STILL, fit="squash", sizes=[[10, 90]] * 2), run(pixels, STILL), atol=1e-6)


def test_pad_shows_the_whole_picture_with_grey_beside_it():
    pixels = torch.full((1, 16, 16, 3), 255, dtype=torch.uint8)
    padded = run(pixels, STILL, fit="pad", sizes=[[100, 50]])
    columns = padded[0, 0].mean(0)
    assert torch.isclose(columns.mean(), torch.tensor(0.75), atol=1e-3)  # half of it white, half grey
    assert (columns > 0.99).sum() >= 7 and (columns < 0.51).sum() >= 7


def test_turning_by_a_right_angle_is_exact():
    image = pictures(1).permute(0, 3, 1, 2) / 255
    maps = torch.tensor([[[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]]])
    turned = sample(image, maps, (16, 16), torch.full((1, 1, 1, 1), 0.5))
    assert any(torch.allclose(turned, torch.rot90(image, way, (2, 3)), atol=1e-5) for way in (1, -1))


def test_a_turn_keeps_lengths_in_a_picture_that_is_not_square():
    maps = move_maps(torch.tensor([CHANGES.index("turn")]), torch.tensor([1.0]), (20, 40))[0, :2, :2]
    to_pixels = torch.diag(torch.tensor([20.0, 10.0]))  # x and y of [-1, 1] in pixels
    turn = to_pixels @ maps @ torch.linalg.inv(to_pixels)
    assert torch.allclose(turn @ turn.T, torch.eye(2), atol=1e-5)


@pytest.mark.parametrize("name", RECOLOUR)
def test_colour_changes_stay_in_range_and_each_image_has_its_own_strength(name):
    images = pictures(6).permute(0, 3, 1, 2) / 255
    strengths = torch.tensor([-1.0, -0.5, 0.0, 0.3, 0.7, 1.0])
    changed = RECOLOUR[name](images, strengths).clamp(0, 1)
    assert changed.shape == images.shape and changed.isfinite().all()
    one_by_one = torch.cat([RECOLOUR[name](images[i : i + 1], strengths[i : i + 1]).clamp(0, 1) for i in range(6)])
    assert torch.allclose(changed, one_by_one, atol=1e-6)
    assert not torch.allclose(changed, images, atol=1e-3)
    if name in ("brightness", "contrast", "saturation", "sharpness"):
        assert torch.allclose(changed[2], images[2], atol=1e-6)


@pytest.mark.parametrize("name", ["equalize", "autocontrast"])
def test_an_image_of_one_colour_stays_as_it_is(name):
    flat = torch.full((2, 3, 8, 8), 0.4)
    assert torch.allclose(RECOLOUR[name](flat, torch.ones(2)), flat, atol=2e-3)


def test_equalize_is_that_of_pillow():
    from PIL import Image, ImageOps

    pixels = (pictures(1, 64, 64)[0].float() * 0.3 + 60).byte()  # Pillow needs many pixels a level
    theirs = np.asarray(ImageOps.equalize(Image.fromarray(pixels.numpy()))).astype(float)
    ours = RECOLOUR["equalize"](pixels.permute(2, 0, 1)[None] / 255, torch.zeros(1))[0].permute(1, 2, 0).numpy() * 255
    assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.99 and np.abs(ours - theirs).max() < 16


def test_about_as_many_are_erased_as_asked_and_never_more_than_a_third():
    draw = torch.rand(1000, 4, generator=torch.Generator().manual_seed(0))
    painted = (
        (erased(torch.zeros(1000, 1, 32, 32), 0.3, draw, torch.full((1, 1, 1, 1), 0.5)) == 0.5)
        .flatten(1)
        .float()
        .mean(1)
    )
    assert 240 < (painted > 0).sum() < 330 and painted.max() < 0.4


def test_other_numbers_of_channels_work():
    for channels in (1, 5):
        assert run(pictures(3, channels=channels), Augmentation()).shape == (3, channels, 16, 16)


def test_padding_has_the_colour_that_the_model_pads_with():
    pixels = torch.full((1, 16, 16, 3), 255, dtype=torch.uint8)
    fill = (0.1, 0.4, 0.8)
    sizes, indices = np.array([[100, 50]]), np.array([0])
    prep = Preprocessing(size=(16, 16), resize="pad", mean=fill, std=fill)
    padded, _ = augment(pixels, sizes, prep, STILL, seed=0, epoch=0, indices=indices)
    torch.testing.assert_close(padded[0, :, :, 0], torch.tensor(fill)[:, None].expand(3, 16))
