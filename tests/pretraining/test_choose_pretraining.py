"""What is chosen for learning without labels, and what is refused."""

from __future__ import annotations

import pytest
import torch

from tests.training.choices.example_facts import facts
from vitrail.errors import VitrailError
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.pretraining.choose_pretraining import (
    AUTO,
    batch_for_views,
    check_plain,
    choose_crops,
    load_encoder,
    local_side,
    method_values,
)
from vitrail.pretraining.pretrainer import split_views, views_for
from vitrail.training.settings import Settings
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing


def settings(**values) -> Settings:
    return Settings().with_values({name.replace("__", "."): value for name, value in values.items()})


@pytest.mark.parametrize(
    ("given", "method"),
    [({}, AUTO), ({"pretrain__method": "dino"}, "dino"), ({"pretrain__teacher": "dinov2-s"}, "features")],
)
def test_the_method(given, method):
    chosen = settings(**given)
    assert chosen.where_unset(method_values(chosen)).pretrain.method == method


@pytest.mark.parametrize(
    ("preset_name", "size", "side"), [("S/16", 224, 112), ("S/16", 128, 64), ("mu/4", 16, 8), ("mu/4", 4, 4)]
)
def test_local_crops_are_half_as_large_in_whole_patches(preset_name, size, side):
    assert local_side(preset(preset_name, image_size=size)) == side


@pytest.mark.parametrize(("images", "size", "batch"), [(40_000, 32, 256), (900, 32, 64), (40_000, 224, 32), (6, 32, 6)])
def test_the_batch_suits_the_images(images, size, batch):
    assert batch_for_views(facts(images=images), size) == batch


@pytest.mark.parametrize(("method", "views"), [("simdino", 8), ("dino", 8), ("mae", 1), ("features", 1)])
def test_views_of_each_method(method, views):
    chosen = choose_crops(settings(pretrain__method=method), preset("mu/4", image_size=16))
    made = views_for(chosen, (16, 16))
    assert len(made) == views and made[0].size == (16, 16) and all(view.size == (8, 8) for view in made[2:])
    assert (made[0].colour == 0) == (method == "mae")  # it paints colours, so they stay as they are


def test_what_is_set_stays():
    chosen = choose_crops(
        settings(pretrain__method="dino", pretrain__local_crops=0, augment__flip="none"), preset("mu/4")
    )
    assert len(views_for(chosen, (16, 16))) == 2 and chosen.augment.flip == "none"


def test_a_swin_is_refused():
    with pytest.raises(VitrailError, match="plain ViTs"):
        check_plain(preset("swin-T"))


def test_parts_of_a_batch_have_all_views():
    views = [torch.arange(5), 10 + torch.arange(5)]
    parts = split_views(views, 2)
    assert [[view.tolist() for view in part] for part in parts] == [[[0, 1, 2], [10, 11, 12]], [[3, 4], [13, 14]]]


@pytest.mark.parametrize(("image_size", "size"), [(None, (224, 224)), (32, (32, 32))])
def test_a_large_model_goes_on_at_a_size_that_several_crops_allow(tmp_path, image_size, size):
    file = tmp_path / "model.safetensors"
    Checkpoint(ViT(preset("mu/16", image_size=256, classes=3)), Preprocessing(size=(256, 256))).save(file)
    loaded = load_encoder(settings(model__start=str(file), model__image_size=image_size))
    assert loaded.config.image_size == loaded.preprocessing.size == size
    assert loaded.task == "embed" and loaded.config.classes == 0
