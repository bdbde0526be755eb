"""SPEC 1: image to tokens."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.patches import (
    ConvStem,
    LinearStem,
    conv_stages,
    conv_to_linear,
    images_from,
    linear_to_conv,
    pad_to_patches,
    patchify,
    unpatchify,
)
from vitrail.model.presets import preset
from vitrail.model.vit import ViT


def tiny(**changes):
    return preset("mu/4", **{"image_size": 8, "classes": 5, **changes})


# ---- how many tokens


@pytest.mark.parametrize(
    ("image_size", "patch_size", "grid", "patches"),
    [
        (224, 16, (14, 14), 196),
        (224, 32, (7, 7), 49),
        (224, 8, (28, 28), 784),
        (8, 4, (2, 2), 4),
        ((4, 4), 2, (2, 2), 4),
        ((32, 64), (16, 8), (2, 8), 16),
    ],
)
def test_an_image_gives_hw_over_p_squared_patches(image_size, patch_size, grid, patches):
    config = ViTConfig(image_size=image_size, patch_size=patch_size)
    assert config.grid == grid
    assert config.patches == patches
    assert config.tokens == patches + 1
    image = torch.zeros(1, 3, *config.image_size)
    assert patchify(image, config.patch_size).shape == (1, patches, config.patch_size[0] * config.patch_size[1] * 3)


def test_a_grid_of_28_by_28_is_785_tokens_with_cls_and_784_without():
    config = preset("mu/8")
    assert (config.grid, config.patches, config.tokens) == ((28, 28), 784, 785)
    assert config.replace(cls_token=False, pool="mean").tokens == 784
    x, _, grid, _ = ViT(config).embed(torch.zeros(1, 3, 224, 224))
    assert (x.shape[1], grid) == (785, (28, 28))


# ---- the toy image


def toy_image():
    """8 x 8 grey, P = 4, four constant patches: p00 = 0.9, p01 = 0.4, p10 = 0.6, p11 = 0.1."""
    corners = torch.tensor([[0.9, 0.4], [0.6, 0.1]])
    return corners.repeat_interleave(4, 0).repeat_interleave(4, 1)[None, None]


def test_the_toy_image_has_four_constant_patches_in_row_major_order():
    patches = patchify(toy_image(), (4, 4))
    assert patches.shape == (1, 4, 16)
    assert torch.equal(patches[0], torch.tensor([0.9, 0.4, 0.6, 0.1])[:, None].expand(4, 16))


def test_the_toy_image_becomes_four_tokens_of_width_8():
    stem = LinearStem(tiny(channels=1, width=8, heads=2))
    tokens = stem(toy_image())
    assert tokens.shape == (1, 4, 8)
    weight_sum, bias = stem.projection.weight.sum(dim=1), stem.projection.bias
    for token, grey in zip(tokens[0], (0.9, 0.4, 0.6, 0.1), strict=True):
        torch.testing.assert_close(token, grey * weight_sum + bias)


# ---- flattening and the linear map


def test_patches_are_flattened_row_by_row_channels_last():
    images = torch.randn(2, 3, 6, 8)
    patches = patchify(images, (3, 2))
    assert patches.shape == (2, 8, 18)
    for row in range(2):
        for column in range(4):
            tile = images[:, :, 3 * row : 3 * row + 3, 2 * column : 2 * column + 2]
            slow = [tile[:, channel, y, x] for y in range(3) for x in range(2) for channel in range(3)]
            assert torch.equal(patches[:, 4 * row + column], torch.stack(slow, dim=1))


@pytest.mark.parametrize("patch_size", [(4, 4), (2, 8), (1, 1), (8, 16)])
def test_unpatchify_is_the_way_back(patch_size):
    images = torch.randn(3, 2, 8, 16)
    grid = 8 // patch_size[0], 16 // patch_size[1]
    assert torch.equal(unpatchify(patchify(images, patch_size), grid, patch_size), images)


def test_an_empty_batch_keeps_its_shape():
    patches = patchify(torch.zeros(0, 3, 8, 8), (4, 4))
    assert patches.shape == (0, 4, 48)
    assert unpatchify(patches, (2, 2), (4, 4)).shape == (0, 3, 8, 8)
    assert ViT(tiny())(torch.zeros(0, 3, 8, 8)).shape == (0, 5)


def test_all_patches_share_one_affine_map_without_activation(lively):
    stem = lively(tiny()).stem
    a, b = torch.randn(2, 1, 3, 8, 8)
    nothing = stem(torch.zeros(1, 3, 8, 8))
    torch.testing.assert_close(stem(2 * a - 3 * b) - nothing, 2 * (stem(a) - nothing) - 3 * (stem(b) - nothing))
    torch.testing.assert_close(nothing[0, 0], stem.projection.bias)
    same = a[:, :, :4, :4].repeat(1, 1, 2, 2)  # one patch, four times
    tokens = stem(same)[0]
    torch.testing.assert_close(tokens, tokens[:1].expand(4, -1))


@pytest.mark.parametrize("patch_size", [(4, 4), (2, 8)])
def test_the_linear_map_is_a_strided_convolution(lively, patch_size):
    stem = lively(tiny(patch_size=patch_size)).stem
    images = torch.randn(2, 3, 8, 8)
    weight = linear_to_conv(stem.projection.weight, patch_size)
    assert weight.shape == (32, 3, *patch_size)
    convolved = F.conv2d(images, weight, stem.projection.bias, stride=patch_size)  # (B, D, h, w)
    torch.testing.assert_close(stem(images), convolved.flatten(2).transpose(1, 2))


@pytest.mark.parametrize("patch_size", [(4, 4), (2, 8)])
def test_a_strided_convolution_is_the_linear_map(patch_size):
    conv = nn.Conv2d(3, 10, patch_size, stride=patch_size)
    images = torch.randn(2, 3, 8, 8)
    weight = conv_to_linear(conv.weight)
    assert weight.shape == (10, patch_size[0] * patch_size[1] * 3)
    tokens = F.linear(patchify(images, patch_size), weight, conv.bias)
    torch.testing.assert_close(tokens, conv(images).flatten(2).transpose(1, 2))


def test_weights_convert_both_ways_without_loss():
    conv = torch.randn(10, 3, 2, 8)
    linear = torch.randn(10, 48)
    assert torch.equal(linear_to_conv(conv_to_linear(conv), (2, 8)), conv)
    assert torch.equal(conv_to_linear(linear_to_conv(linear, (2, 8))), linear)


def test_pictures_as_stored_become_images_as_the_model_takes_them():
    pixels = torch.arange(2 * 3 * 4, dtype=torch.uint8).reshape(2, 3, 4)
    images = images_from(pixels)
    assert (images.shape, images.dtype) == ((1, 4, 2, 3), torch.float32)
    assert images[0, 1, 1, 2] == pixels[1, 2, 1]
    assert torch.equal(images_from(torch.stack([pixels, pixels])), images.expand(2, -1, -1, -1))


# ---- what is refused, and padding


@pytest.mark.parametrize("forward", ["__call__", "features"])
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 3, 9, 8), "height 9 .* patch size 4"),
        ((1, 3, 8, 11), "width 11 .* patch size 4"),
        ((1, 3, 3, 8), "height 3 .* patch size 4"),
        ((1, 1, 8, 8), "have 1 channels, the model takes 3"),
        ((1, 8, 8, 3), "have 8 channels, the model takes 3"),
        ((1, 3, 0, 8), "empty: height 0, and a patch needs 4"),
        ((1, 3, 8, 0), "empty: width 0, and a patch needs 4"),
        ((3, 8, 8), r"4 numbers, not \(3, 8, 8\)"),
    ],
)
def test_a_wrong_image_is_refused_with_both_numbers(forward, shape, message):
    with pytest.raises(VitrailError, match=message):
        getattr(ViT(tiny()), forward)(torch.zeros(shape))


def test_whole_number_pixels_are_refused_by_name():
    with pytest.raises(VitrailError, match=r"floating point.*torch\.uint8"):
        ViT(tiny())(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))


@pytest.mark.parametrize("stem", ["linear", "conv"])
@pytest.mark.parametrize("height", range(1, 13))
def test_no_size_is_ever_cropped_silently(stem, height):
    model = ViT(tiny(stem=stem)).eval()
    images = torch.randn(1, 3, height, 8)
    if height % 4:
        with pytest.raises(VitrailError, match=f"height {height} "):
            model(images)
    else:
        assert model.features(images).grid == (height // 4, 2)


def test_padding_on_request_adds_zeros_below_and_to_the_right(lively):
    model = lively(tiny())
    images = torch.randn(2, 3, 9, 10)
    by_hand = torch.zeros(2, 3, 12, 12)
    by_hand[:, :, :9, :10] = images
    assert torch.equal(pad_to_patches(images, (4, 4)), by_hand)
    assert torch.equal(model(images, pad=True), model(by_hand))
    features = model.features(images, pad=True)
    assert features.grid == (3, 3)
    assert torch.equal(features.patches, model.features(by_hand).patches)


def test_with_padding_every_pixel_still_counts(lively):
    images = torch.randn(1, 3, 9, 10, requires_grad=True)
    lively(tiny())(images, pad=True).square().sum().backward()
    assert (images.grad != 0).all()


def test_padding_leaves_a_fitting_image_alone(lively):
    model, images = lively(tiny()), torch.randn(1, 3, 8, 8)
    assert torch.equal(model(images, pad=True), model(images))
    assert pad_to_patches(images, (4, 4)) is images


@pytest.mark.parametrize("shape", [(), (3,), (3, 9, 8), (1, 3, 0, 8), (1, 1, 9, 9)])
def test_padding_does_not_let_a_wrong_image_through(shape):
    with pytest.raises(VitrailError):
        ViT(tiny())(torch.zeros(shape), pad=True)


# ---- the other input: a CNN's features


@pytest.mark.parametrize(
    "patch_size", [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6), (7, 7), (16, 16), (4, 6), (1, 8)]
)
def test_a_conv_stem_gives_one_token_a_patch(patch_size):
    size = 3 * patch_size[0], 2 * patch_size[1]
    config = ViTConfig(image_size=size, patch_size=patch_size, stem="conv", width=32, depth=1, heads=2, classes=0)
    stem = ConvStem(config)
    assert stem(torch.randn(2, 3, *size)).shape == (2, 6, 32)
    strides = torch.tensor([layer.stride for layer in stem.layers if isinstance(layer, nn.Conv2d)])
    assert tuple(strides.prod(dim=0).tolist()) == patch_size


def test_maps_of_the_conv_stem_lead_to_the_patches():
    config = ViTConfig(image_size=(24, 32), patch_size=(4, 8), stem="conv", width=32, depth=1, heads=2, stem_blocks=1)
    stem = ConvStem(config).eval()
    images = torch.randn(2, 3, 24, 32)
    maps = stem.maps(images)
    stages = conv_stages(config)
    assert [stage.cell for stage in stages] == [(2, 2), (4, 4), (4, 8)]
    assert [tuple(x.shape) for x in maps] == [
        (2, stage.channels, 24 // stage.cell[0], 32 // stage.cell[1]) for stage in stages
    ]
    torch.testing.assert_close(stem.tokens(maps[-1]), stem(images))


@pytest.mark.parametrize(
    ("patch", "strides", "channels"),
    [(16, [4, 2, 2], [64, 96, 128]), (8, [4, 2], [64, 128]), (4, [2, 2], [64, 128]), (12, [4, 3], [64, 128])],
)
def test_wide_maps_begin_at_a_quarter_of_the_resolution(patch, strides, channels):
    config = ViTConfig(image_size=6 * patch, patch_size=patch, stem="conv", stem_maps="wide", width=128, heads=4)
    stages = conv_stages(config)
    assert [stage.stride for stage in stages] == [(stride, stride) for stride in strides]
    assert [stage.channels for stage in stages] == channels and stages[-1].cell == (patch, patch)
    assert ConvStem(config)(torch.randn(1, 3, 6 * patch, 6 * patch)).shape == (1, 36, 128)
    with pytest.raises(VitrailError, match="stem_maps 'wide' goes with stem 'conv'"):
        config.replace(stem="linear")


def test_conv_stem_tokens_are_in_row_major_order(lively):
    stem = lively(tiny(stem="conv")).stem
    images = torch.randn(1, 3, 24, 32)
    changed = images.clone()
    changed[:, :, 12:16, 4:8] += 1  # inside patch (3, 1)
    moved = (stem(images) - stem(changed)).abs().sum(dim=-1)[0].reshape(6, 8) > 0
    assert moved[3, 1]
    moved[2:5, 0:3] = False  # small kernels see the neighbours too, and nothing further
    assert not moved.any()


def test_a_conv_stem_trains_with_the_model():
    model = ViT(tiny(stem="conv")).train()
    model(torch.randn(4, 3, 8, 8)).square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.stem.parameters())


def small_cnn():
    return nn.Sequential(nn.Conv2d(3, 6, 4, stride=4), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5))


FEATURES = {"stem": "features", "feature_channels": 6}


def test_features_of_a_users_cnn_go_through_one_linear_map(lively):
    cnn = small_cnn().eval()
    stem = lively(tiny(**FEATURES), cnn=cnn).stem
    images = torch.randn(2, 3, 8, 12)
    features = cnn(images)  # (2, 6, 2, 3)
    tokens = stem(images)
    assert stem.projection.weight.shape == (32, 6)
    for row in range(2):
        for column in range(3):
            token = features[:, :, row, column] @ stem.projection.weight.T + stem.projection.bias
            torch.testing.assert_close(tokens[:, 3 * row + column], token)


def test_a_users_cnn_keeps_the_weights_it_came_with():
    cnn = small_cnn()
    cnn.classifier = nn.Linear(6, 3)  # a leftover of where it came from, which only fresh weights would touch
    cnn.forward = cnn[:4].forward
    before = [parameter.clone() for parameter in cnn.parameters()]
    model = ViT(tiny(**FEATURES), cnn=cnn)
    assert model.stem.cnn is cnn
    assert all(torch.equal(old, new) for old, new in zip(before, cnn.parameters(), strict=True))


def test_a_cnn_that_is_not_frozen_trains():
    cnn = small_cnn()
    model = ViT(tiny(**FEATURES), cnn=cnn).train()
    model(torch.randn(4, 3, 8, 8)).square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in cnn.parameters())
    assert cnn[1].num_batches_tracked == 1
    assert cnn[1].running_mean.abs().max() > 0


def test_a_frozen_cnn_stays_put_and_the_map_above_it_trains():
    cnn = small_cnn()
    model = ViT(tiny(**FEATURES), cnn=cnn, freeze_cnn=True).train().eval().train()
    before = {name: value.clone() for name, value in cnn.state_dict().items()}
    images = torch.randn(4, 3, 8, 8)
    model(images).square().sum().backward()
    assert all(parameter.grad is None for parameter in cnn.parameters())
    assert not any(parameter.requires_grad for parameter in cnn.parameters())
    assert all(torch.equal(before[name], value) for name, value in cnn.state_dict().items())
    assert not any(module.training for module in cnn.modules())
    assert torch.equal(model.stem(images), model.stem(images))  # its dropout is off, in training too
    assert model.stem.projection.weight.grad.abs().max() > 0


def test_a_feature_map_that_is_not_as_promised_is_refused_with_both_shapes():
    model = ViT(tiny(stem="features", feature_channels=7), cnn=small_cnn())
    with pytest.raises(VitrailError, match=r"\(1, 6, 2, 2\), the config says \(1, 7, 2, 2\)"):
        model(torch.randn(1, 3, 8, 8))
    model = ViT(tiny(patch_size=2, **FEATURES), cnn=small_cnn())
    with pytest.raises(VitrailError, match=r"\(1, 6, 2, 2\), the config says \(1, 6, 4, 4\)"):
        model(torch.randn(1, 3, 8, 8))


def test_a_cnn_goes_with_the_features_stem_and_only_with_it():
    with pytest.raises(VitrailError, match="'features'.*'linear'"):
        ViT(tiny(), cnn=small_cnn())
    with pytest.raises(VitrailError, match="'features'"):
        ViT(tiny(**FEATURES))


# ---- the trade-off


def test_smaller_patches_mean_more_tokens_and_larger_ones_fewer():
    tokens = [ViTConfig(image_size=224, patch_size=patch).patches for patch in (32, 16, 8)]
    assert tokens == [49, 196, 784]  # half the side, four times the tokens, sixteen times the attention map
