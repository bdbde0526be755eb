"""Another number of classes, channels or pixels: the backbone is kept, and what changed is said."""

import logging

import numpy as np
import pytest
import torch

import vitrail
from vitrail.data.loading.transforms import normalise
from vitrail.errors import VitrailError
from vitrail.model.patches import linear_to_conv
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import IMAGENET, Preprocessing


@pytest.fixture
def path(tmp_path):
    config = preset("mu/4", image_size=16, classes=3)
    checkpoint = Checkpoint(ViT(config), Preprocessing(size=(16, 16), mean=(0.5,) * 3), labels=["a", "b", "c"])
    return checkpoint.save(tmp_path / "m.safetensors")


def same_backbone(a: ViT, b: ViT, but: tuple[str, ...]) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in ours if not name.startswith(but))


def test_another_number_of_classes_keeps_the_backbone_and_says_so(path, caplog):
    with caplog.at_level(logging.WARNING, "vitrail"):
        loaded = vitrail.load(path, labels=["x", "y"])
    assert loaded.model(torch.zeros(1, 3, 16, 16)).shape == (1, 2)
    assert loaded.labels == ["x", "y"]
    assert same_backbone(vitrail.load(path).model, loaded.model, but=("head.",))
    assert "head is new: 3 outputs before, 2 now" in loaded.notes[-1]
    assert "head is new" in caplog.text


def test_the_same_number_of_classes_keeps_the_head(path):
    kept = vitrail.load(path, classes=3)
    assert same_backbone(vitrail.load(path).model, kept.model, but=())
    assert kept.labels == ["a", "b", "c"] and not kept.notes


def test_other_names_for_as_many_classes_get_a_new_head(path):
    other = vitrail.load(path, labels=["x", "y", "z"])
    assert not torch.equal(other.model.head.out.weight, vitrail.load(path).model.head.out.weight)
    assert "head is new" in other.notes[-1]


def test_no_classes_drop_the_head(path):
    loaded = vitrail.load(path, classes=0)
    assert loaded.task == "embed" and loaded.labels is None
    assert loaded.model(torch.zeros(1, 3, 16, 16)).shape == (1, 32)


def test_labels_and_classes_that_disagree_are_refused(path):
    with pytest.raises(VitrailError, match="2 labels for 5 classes"):
        vitrail.load(path, labels=["x", "y"], classes=5)


def test_one_channel_is_the_sum_so_a_grey_image_gives_the_same_answer(path):
    grey = torch.randn(2, 1, 16, 16)
    colour, one = vitrail.load(path), vitrail.load(path, channels=1)
    assert torch.allclose(one.model(grey), colour.model(grey.expand(-1, 3, -1, -1)), atol=1e-5)
    assert one.preprocessing.channels == 1 and "summed" in one.notes[-1]


STATISTICS = {"imagenet": IMAGENET, "extreme": ((0.1, 0.5, 0.8), (0.1, 0.3, 0.5))}


def grey_answers(colour: Checkpoint, one: Checkpoint) -> tuple[torch.Tensor, torch.Tensor]:
    """What the models of colour and of grey pictures say of the same grey pictures."""
    grey = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 1), dtype=np.uint8)
    pixels = {3: grey.repeat(3, axis=3), 1: grey}
    inputs = [normalise(torch.from_numpy(pixels[c.config.channels]), c.preprocessing) for c in (colour, one)]
    with torch.no_grad():
        return colour.model.eval()(inputs[0]), one.model.eval()(inputs[1])


@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("changes", [{}, {"patch_bias": False, "stem_norm": True}, {"patch_size": (4, 8)}], ids=str)
def test_a_grey_picture_gets_the_answer_of_the_same_picture_in_rgb(tmp_path, lively, statistics, changes):
    mean, std = STATISTICS[statistics]
    model = lively(preset("mu/4", **{"image_size": 16, "classes": 3} | changes))
    path = Checkpoint(model, Preprocessing(size=(16, 16), mean=mean, std=std)).save(tmp_path / "m.safetensors")
    colour, one = vitrail.load(path), vitrail.load(path, channels=1)
    expected, found = grey_answers(colour, one)
    assert expected.std() > 0.01
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    saved = vitrail.load(one.save(tmp_path / "one.safetensors"))
    assert torch.equal(grey_answers(colour, saved)[1], found)


def test_a_model_of_grey_pictures_answers_the_same_in_rgb(tmp_path, lively):
    model = lively(preset("mu/4", image_size=16, classes=3, channels=1))
    path = Checkpoint(model, Preprocessing(size=(16, 16), mean=(0.3,), std=(0.2,))).save(tmp_path / "m.safetensors")
    torch.testing.assert_close(*grey_answers(vitrail.load(path, channels=3), vitrail.load(path)), atol=1e-4, rtol=1e-4)


HEADS = [
    {"stem": "conv"},
    {"head": "mask_decoder"},
    {"head": "mask_decoder", "stem": "conv"},
    {"head": "box_decoder", "queries": 4, "head_depth": 1},
]


@pytest.mark.parametrize("changes", HEADS, ids=str)
def test_convolutions_of_a_grey_picture_differ_at_its_border_only(tmp_path, lively, changes):
    """Zeros beyond the border are the mean of each channel, which is not the same grey."""
    model = lively(preset("mu/4", **{"image_size": 16, "classes": 3} | changes))
    task = {"mask_decoder": "segment", "box_decoder": "detect"}.get(changes.get("head"), "classify")
    mean, std = IMAGENET
    path = Checkpoint(model, Preprocessing(size=(16, 16), mean=mean, std=std), task).save(tmp_path / "m.safetensors")
    colour, one = vitrail.load(path), vitrail.load(path, channels=1)
    seen = {}
    for checkpoint in (colour, one):
        norm = dict(checkpoint.model.named_modules())[
            "stem.layers.1" if "stem" in changes
            else "head.convs.details.0.norm" if task == "segment" else "head.convs.details.1"
        ]  # fmt: skip
        norm.register_forward_hook(lambda _, __, x, c=checkpoint.config.channels: seen.__setitem__(c, x))
    grey_answers(colour, one)
    torch.testing.assert_close(seen[1][..., 1:-1, 1:-1], seen[3][..., 1:-1, 1:-1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("channels", [2, 4, 13])
def test_other_channels_repeat_and_rescale_so_a_flat_image_gives_the_same_answer(path, channels):
    flat = torch.randn(2, 1, 16, 16)
    colour, more = vitrail.load(path), vitrail.load(path, channels=channels)
    weight = linear_to_conv(colour.model.stem.projection.weight, (4, 4))
    adapted = linear_to_conv(more.model.stem.projection.weight, (4, 4))
    assert torch.allclose(adapted[:, -1], weight[:, (channels - 1) % 3] * 3 / channels)
    if channels % 3 == 0:
        assert torch.allclose(more.model(flat.expand(-1, channels, -1, -1)), colour.model(flat.expand(-1, 3, -1, -1)))
    assert more.preprocessing.channels == channels == more.config.channels
    assert f"rescaled by 3/{channels}" in more.notes[-1]


def test_a_conv_stem_is_adapted_too(tmp_path):
    config = preset("mu/4", image_size=16, classes=2, stem="conv")
    path = Checkpoint(ViT(config), Preprocessing(size=(16, 16))).save(tmp_path / "c.safetensors")
    grey = torch.randn(1, 1, 16, 16)
    assert torch.allclose(
        vitrail.load(path, channels=1).model(grey), vitrail.load(path).model(grey.expand(-1, 3, -1, -1)), atol=1e-5
    )


@pytest.mark.parametrize("rule", ["bicubic", "bicubic_antialias", "bicubic_offset", "linear"])
@pytest.mark.parametrize("size", [(24, 24), (8, 32)])
def test_another_image_size_resamples_as_the_model_does_at_run_time(tmp_path, rule, size):
    config = preset("mu/4", image_size=16, classes=2, resample=rule)
    path = Checkpoint(ViT(config), Preprocessing(size=(16, 16))).save(tmp_path / "m.safetensors")
    native, resized = vitrail.load(path), vitrail.load(path, image_size=size)
    images = torch.randn(1, 3, *size)
    assert torch.equal(native.model(images), resized.model(images))
    assert resized.config.image_size == size == resized.preprocessing.size
    assert rule in resized.notes[-1]


def test_training_settings_can_be_set_while_loading(path):
    assert vitrail.load(path, drop_path=0.1, dropout=0.2).model.blocks[0].mlp.dropout.p == 0.2
    with pytest.raises(VitrailError, match="did you mean 'drop_path'"):
        vitrail.load(path, drop_paths=0.1)
