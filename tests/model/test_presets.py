"""Sizes as strings: their settings, their exact parameter counts, and the names that there are not."""

from __future__ import annotations

import pytest
import torch

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.presets import build_network, is_preset, preset, preset_names
from vitrail.model.vit import ViT


def build_on_meta(config):
    with torch.device("meta"):
        return build_network(config)


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Ti/16", 5_717_416),
        ("S/16", 22_050_664),
        ("B/16", 86_567_656),
        ("L/16", 304_326_632),
        ("H/14", 632_045_800),
        ("S/32", 22_878_952),
        ("B/32", 88_224_232),
        ("DeiT-Ti/16-distilled", 5_910_800),
        ("DeiT-B/16-distilled", 87_338_192),
        ("DINO-S/8", 21_670_272),
        ("DINO-B/16", 85_798_656),
        ("DINOv2-S/14", 22_056_576 - 384),  # less the mask token of its training
        ("DINOv2-g/14", 1_136_480_768 - 1536),
        ("swin-T", 28_288_354),
        ("swin-S", 49_606_258),
        ("swin-B", 87_768_224),
        ("swin-L", 196_532_476),
        ("swinv2-T", 28_347_154),
        ("swinv2-B", 87_918_816),
        ("swinv2-L", 196_739_932),
        ("DINOv3-S/16", 21_596_544 - 384 + 12 * 384),  # and a bias of the keys, which there has none
        ("DINOv3-7B/16", 6_716_362_752 - 4096 + 40 * 4096),
    ],
)
def test_a_preset_has_the_published_number_of_parameters(name, parameters):
    assert count(build_on_meta(name)) == parameters


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_builds_and_runs_on_the_meta_device(name):
    config = preset(name)
    model = build_on_meta(config).to("meta")  # fixed positions too
    assert all(parameter.is_meta for parameter in model.parameters())
    answer = model(torch.zeros(2, 3, *config.image_size, device="meta"))
    assert answer.shape == (2, config.classes or config.pooled_width)
    assert is_preset(name)


def test_names_are_unique_and_the_sizes_are_the_well_known_ones():
    names = preset_names()
    assert len(set(names)) == len(names)
    assert {"mu/16", "Ti/16", "S/16", "B/16", "L/16", "H/14", "g/14"} <= set(names)
    assert preset("S/16") == ViTConfig()


@pytest.mark.parametrize(
    ("name", "width", "depth", "heads", "mlp_width"),
    [
        ("mu/16", 32, 1, 2, 128),
        ("Ti/16", 192, 12, 3, 768),
        ("S/16", 384, 12, 6, 1536),
        ("B/16", 768, 12, 12, 3072),
        ("L/16", 1024, 24, 16, 4096),
        ("H/14", 1280, 32, 16, 5120),
        ("g/14", 1408, 40, 16, 6144),
        ("So400m/14", 1152, 27, 16, 4304),
        ("DINOv2-g/14", 1536, 40, 24, 4096),
        ("DINOv3-H+/16", 1280, 32, 20, 5120),
    ],
)
def test_the_numbers_of_each_size(name, width, depth, heads, mlp_width):
    config = preset(name)
    assert (config.width, config.depth, config.heads, config.mlp_width) == (width, depth, heads, mlp_width)


def test_what_the_families_change():
    deit = preset("DeiT-S/16-distilled")
    assert (deit.distillation, deit.prefix, deit.classes) == (True, 2, 1000)
    assert preset("DeiT-S/16") == preset("S/16")

    dino = preset("DINO-S/8")
    assert (dino.classes, dino.resample, dino.patch_size, dino.image_size) == (0, "bicubic_offset", (8, 8), (224, 224))

    dinov2 = preset("DINOv2-B/14")
    assert (dinov2.image_size, dinov2.grid, dinov2.layer_scale) == ((518, 518), (37, 37), 1.0)
    assert (dinov2.registers, dinov2.resample, dinov2.classes) == (0, "bicubic_offset", 0)

    registers = preset("DINOv2-B/14-reg")
    assert (registers.registers, registers.resample, registers.layer_scale) == (4, "bicubic_antialias", 1.0)
    assert registers.tokens == 1 + 4 + 37 * 37

    assert preset("DINOv2-g/14").activation == preset("DINOv2-g/14-reg").activation == "swiglu"
    assert preset("DINOv2-L/14").activation == "gelu"


def test_plain_sizes_take_any_patch_size():
    assert preset("mu/4", image_size=32).patch_size == (4, 4)
    assert preset("S/7").grid == (32, 32)
    assert is_preset("S/7")
    with pytest.raises(VitrailError, match="224, which patch_size 15 does not divide"):
        preset("S/15")
    with pytest.raises(VitrailError, match="patch_size .* not 0"):
        preset("S/0")


def test_changes_win_over_the_preset_and_the_mlp_follows_the_width():
    config = preset("S/16", classes=10, width=192, heads=3, image_size=96)
    assert (config.classes, config.width, config.mlp_width, config.image_size) == (10, 192, 768, (96, 96))
    assert preset("S/16", width=192, mlp_width=5).mlp_width == 5
    assert preset("DINOv2-g/14", classes=3).classes == 3


def test_an_unknown_change_is_refused_with_a_suggestion():
    with pytest.raises(VitrailError, match="'imagesize': did you mean 'image_size'"):
        preset("S/16", imagesize=96)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "S",
        "S/",
        "/16",
        "s/16",
        "XL/16",
        "S-16",
        "S/16 ",
        "S/-16",
        "S/16.0",
        "google/vit",
        "DINO-Ti/16",
        "DINOv2-S/16",
        "DINO-S/16-reg",
        "DeiT-S/16-reg",
        "S/16-distilled",
        "DINOv3-S/14",
        "DINOv2-S/14-reg-reg",
    ],
)
def test_a_name_that_is_none_is_refused_with_those_there_are(name):
    assert not is_preset(name)
    with pytest.raises(VitrailError, match="no preset .*Ti/16.*DINOv2-g/14-reg"):
        preset(name)
    with pytest.raises(VitrailError, match="no preset"):
        ViT(name)


def test_a_model_is_built_from_a_name_or_a_config():
    assert build_on_meta("S/16").config == build_on_meta(ViTConfig()).config == ViTConfig()
