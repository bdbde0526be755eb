"""What the model gets: the same as transformers' image processors give, and each resize rule as it says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitrail.data.loading.transforms import before_crop, normalise, normalise_array, prepare
from vitrail.weights.preprocessing import CLIP, HALF, IMAGENET, Preprocessing

SIZES = [(48, 40), (300, 200), (225, 224), (64, 333), (224, 224), (31, 30)]  # width, height


def ours(image: np.ndarray, preprocessing: Preprocessing) -> torch.Tensor:
    return normalise(torch.from_numpy(prepare(image, preprocessing))[None], preprocessing)[0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("name", "settings", "preprocessing"),
    [
        ("vit", {}, Preprocessing(resize="squash", interpolation="bilinear")),
        (
            "deit",
            {"size": {"shortest_edge": 256}, "image_mean": IMAGENET[0], "image_std": IMAGENET[1]},
            Preprocessing(resize="crop", crop_fraction=224 / 256, mean=IMAGENET[0], std=IMAGENET[1]),
        ),
        (
            "deit",  # as the class comes: both sides to 256, then the middle
            {"image_mean": HALF[0], "image_std": HALF[1]},
            Preprocessing(resize="squash", crop_fraction=224 / 256),
        ),
        ("clip", {}, Preprocessing(mean=CLIP[0], std=CLIP[1])),
        (
            "clip",
            {"size": {"shortest_edge": 248}},
            Preprocessing(crop_fraction=224 / 248, mean=CLIP[0], std=CLIP[1]),
        ),
    ],
)
def test_it_is_what_transformers_gives(
    name: str, settings: dict[str, Any], preprocessing: Preprocessing, size: tuple[int, int], make: SimpleNamespace
) -> None:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    processor = {"vit": ViTImageProcessorPil, "deit": DeiTImageProcessorPil, "clip": CLIPImageProcessorPil}[name]
    image = make.photo(1, size)
    theirs = processor(**settings)(image, return_tensors="pt")["pixel_values"][0]
    mine = ours(np.asarray(image), preprocessing)
    assert mine.shape == theirs.shape == (3, 224, 224)
    torch.testing.assert_close(mine, theirs.float(), atol=1e-5, rtol=0)


SIDES = st.integers(1, 120)


def torchvision_style(image: Image.Image, edge: int, size: int) -> np.ndarray:
    """Resize(edge), CenterCrop(size) as torchvision 0.28 computes them: the longer side down, the offset to the nearest
    whole number, halves to the even one."""
    short, long = sorted(image.size)
    longer = int(edge * long / short)
    resized = image.resize((edge, longer) if image.width <= image.height else (longer, edge), Image.Resampling.BICUBIC)
    top, left = round((resized.height - size) / 2.0), round((resized.width - size) / 2.0)
    return np.asarray(resized.crop((left, top, left + size, top + size)))


@given(SIDES, SIDES, st.integers(4, 40), st.floats(0.5, 1), st.integers(0, 9))
def test_input_pixels_are_those_of_torchvision(width: int, height: int, size: int, fraction: float, seed: int) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    preprocessing = Preprocessing(size=(size, size), crop_fraction=fraction, crop_offset="round")
    edge = before_crop(preprocessing)[0]
    expected = torchvision_style(Image.fromarray(noise), edge, size)
    np.testing.assert_array_equal(prepare(noise, preprocessing), expected)


@given(SIDES, SIDES, st.integers(4, 40), st.integers(0, 9))
def test_rounding_down_begins_where_transformers_does(width: int, height: int, size: int, seed: int) -> None:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    preprocessing = Preprocessing(size=(size, size), crop_fraction=0.8, mean=(0.0,) * 3, std=(1 / 255,) * 3)
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": before_crop(preprocessing)[0]},
        crop_size={"height": size, "width": size},
        do_rescale=False,
        do_normalize=False,
    )
    expected = processor(Image.fromarray(noise), return_tensors="np")["pixel_values"][0]
    np.testing.assert_array_equal(prepare(noise, preprocessing).transpose(2, 0, 1), expected)


@given(SIDES, SIDES, st.sampled_from([(32, 32), (32, 48), (40, 24)]), st.sampled_from([1.0, 0.9, 0.875, 0.8]))
@pytest.mark.parametrize("mode", ["center", "squash"])
def test_input_pixels_are_those_of_timm(
    mode: str, width: int, height: int, size: tuple[int, int], fraction: float
) -> None:
    from timm.data import create_transform

    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))
    theirs = create_transform((3, *size), crop_pct=fraction, crop_mode=mode, interpolation="bilinear", normalize=False)
    resize = {"center": "crop", "squash": "squash"}[mode]
    ours = Preprocessing(
        size=size, resize=resize, crop_fraction=fraction, interpolation="bilinear", crop_offset="round"
    )
    np.testing.assert_array_equal(prepare(np.asarray(image), ours), theirs(image).permute(1, 2, 0).numpy())


def test_a_file_that_says_nothing_of_the_offset_rounds_down() -> None:
    """Models of before it was a setting keep their answers."""
    said = Preprocessing(size=(4, 4), crop_offset="round")
    assert Preprocessing.from_dict(said.to_dict()) == said
    silent = Preprocessing.from_dict({"size": [4, 4], "interpolation": "nearest"})
    assert silent.crop_offset == "floor" and "crop_offset" not in silent.to_dict()
    columns = np.repeat(np.arange(7, dtype=np.uint8)[None, :, None], 4, axis=0).repeat(3, axis=2)  # (4, 7, 3)
    assert prepare(columns, silent)[0, :, 0].tolist() == [1, 2, 3, 4]  # 1.5 pixels to the left of it
    assert prepare(columns, silent.replace(crop_offset="round"))[0, :, 0].tolist() == [2, 3, 4, 5]


def test_crop_takes_the_middle_of_a_wide_image() -> None:
    image = np.zeros((10, 30, 3), np.uint8)
    image[:, 10:20] = 200
    assert (prepare(image, Preprocessing(size=(10, 10), interpolation="nearest")) == 200).all()


def test_pad_keeps_the_whole_image_on_the_mean_colour() -> None:
    image = np.full((10, 40, 3), 255, np.uint8)
    preprocessing = Preprocessing(size=(16, 16), resize="pad", mean=IMAGENET[0], std=IMAGENET[1])
    result = prepare(image, preprocessing)
    assert (result[6:10] == 255).all()
    assert result[0, 0].tolist() == [round(255 * mean) for mean in IMAGENET[0]]
    edge = normalise(torch.from_numpy(result)[None], preprocessing)[0, :, 0, 0]
    assert edge.abs().max() < 0.01


@pytest.mark.parametrize("resize", ["crop", "pad", "squash"])
@pytest.mark.parametrize("channels", [1, 3, 4, 6])
@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (50, 1), (17, 23), (200, 3)])
def test_any_image_becomes_the_size_of_the_model(resize: str, channels: int, shape: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*shape, channels), dtype=np.uint8)
    preprocessing = Preprocessing(size=(20, 12), resize=resize, crop_fraction=0.9).for_channels(channels)
    result = prepare(image, preprocessing)
    assert result.shape == (20, 12, channels) and result.dtype == np.uint8 and result.flags.c_contiguous
    batch = normalise(torch.from_numpy(result)[None], preprocessing)
    assert batch.shape == (1, channels, 20, 12) and batch.dtype == torch.float32 and batch.isfinite().all()


def test_an_image_of_the_right_size_is_left_as_it_is() -> None:
    image = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    for resize in ("crop", "pad", "squash"):
        np.testing.assert_array_equal(prepare(image, Preprocessing(size=(24, 24), resize=resize)), image)


def test_channels_one_by_one_are_resized_as_colour_is() -> None:
    image = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    preprocessing = Preprocessing(size=(16, 16))
    six = prepare(np.concatenate([image, image], axis=2), preprocessing.for_channels(6))
    np.testing.assert_array_equal(six[..., :3], prepare(image, preprocessing))


def test_normalise_is_the_formula() -> None:
    batch = torch.arange(2 * 3 * 4 * 3, dtype=torch.uint8).view(2, 3, 4, 3)
    expected = (batch.permute(0, 3, 1, 2).float() / 255 - torch.tensor(IMAGENET[0]).view(3, 1, 1)) / torch.tensor(
        IMAGENET[1]
    ).view(3, 1, 1)
    result = normalise(batch, Preprocessing(mean=IMAGENET[0], std=IMAGENET[1]))
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-6)
    assert result.is_contiguous()


@pytest.mark.parametrize(("mean", "std"), [IMAGENET, HALF, CLIP, ((0.3,), (0.17,)), ((0.1,) * 5, (0.7,) * 5)])
def test_normalise_without_torch_is_the_formula_for_every_pixel(
    mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    every = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(len(mean), axis=3)
    batch = np.concatenate([every, every[:, ::-1]])
    given = normalise_array(batch, Preprocessing(mean=mean, std=std))
    expected = ((batch / 255 - np.array(mean)) / np.array(std)).transpose(0, 3, 1, 2)
    assert given.dtype == np.float32 and given.flags.c_contiguous
    np.testing.assert_allclose(given, expected, atol=1e-6, rtol=1e-6)


def test_what_a_jpeg_must_not_be_decoded_below() -> None:
    assert before_crop(Preprocessing(crop_fraction=0.875)) == (256, 256)
    assert before_crop(Preprocessing(crop_fraction=224 / 248)) == (248, 248)
    assert before_crop(Preprocessing(crop_fraction=224 / 354)) == (354, 354)  # 353.99999999999994 in floating point
    assert before_crop(Preprocessing(size=(96, 128), crop_fraction=0.9)) == (106, 142)
    assert before_crop(Preprocessing(size=(96, 128), crop_fraction=0.9, resize="pad")) == (96, 128)


def test_a_wrong_array_is_a_programming_error() -> None:
    for wrong in (np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros((4, 4, 1), np.uint8)):
        with pytest.raises(ValueError, match="prepare takes uint8"):
            prepare(wrong, Preprocessing())
