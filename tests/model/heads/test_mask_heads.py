"""Heads for masks: shapes at every size, what each of them is by definition, and that they learn."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.heads.mask_heads import LinearMasks, MaskDecoder, MaskQueries, finer_strides, spread_indices
from vitrail.model.presets import preset
from vitrail.model.vit import ViT

HEADS = ("mask_linear", "mask_decoder", "mask_queries")


def tiny(head, **changes):
    return preset("mu/4", **{"image_size": 16, "classes": 5, "head": head, **changes})


def model(head, **changes):
    torch.manual_seed(0)
    return ViT(tiny(head, **changes)).eval()


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("size", [(16, 16), (8, 20), (4, 4), (12, 40)], ids=str)
def test_logits_cover_inputs_of_any_size_and_aspect(head, size):
    logits = model(head)(torch.randn(2, 3, *size))
    assert logits.shape[:2] == (2, 5)
    assert logits.shape[2] * size[1] == logits.shape[3] * size[0]
    assert logits.dtype == torch.float32


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("patch", [1, 2, 3, 4, 7, 8, 14, 16, 32, (8, 16)], ids=str)
def test_every_patch_size_works(head, patch):
    down, across = (patch, patch) if isinstance(patch, int) else patch
    config = tiny(head, patch_size=patch, image_size=(2 * down, 2 * across), width=16, heads=2)
    logits = ViT(config).eval()(torch.randn(1, 3, 2 * down, 3 * across))
    assert logits.shape[:2] == (1, 5)
    assert logits.shape[2] >= 2
    assert logits.shape[3] >= 3


@pytest.mark.parametrize("head", HEADS)
def test_an_input_padded_to_patches_is_the_padded_input(head):
    images = torch.randn(2, 3, 13, 18)
    network = model(head)
    with torch.no_grad():
        torch.testing.assert_close(network(images, pad=True), network(F.pad(images, (0, 2, 0, 3))))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("changes", [{"stem": "conv"}, {"cls_token": False, "pool": "mean"}, {"registers": 2}], ids=str)
def test_heads_work_with_other_networks(head, changes):
    network = model(head, **changes).train()
    logits = network(torch.randn(2, 3, 16, 16))
    logits.sum().backward()
    assert all(p.grad is not None for p in network.head.parameters())


def test_linear_masks_are_one_linear_map_of_each_patch():
    network = model("mask_linear")
    images = torch.randn(2, 3, 16, 24)
    patches = network.features(images).patches
    expected = network.head.out(patches).reshape(2, 4, 6, 5).permute(0, 3, 1, 2)
    torch.testing.assert_close(network(images), expected)


def test_masks_of_queries_are_products_of_queries_and_features():
    network = model("mask_queries", patch_size=4)
    assert len(network.head.convs) == 0  # 4 pixels a patch are fine enough
    images = torch.randn(2, 3, 16, 16)
    features = network.features(images)
    queries = features.queries
    for i, layer in enumerate(network.head.layers):
        queries = layer(F.gelu(queries) if i else queries)
    pixels = network.head.project(features.patches)  # (B, N, C)
    expected = torch.einsum("bkc,bnc->bkn", queries, pixels) / pixels.shape[2] ** 0.5
    torch.testing.assert_close(network(images).flatten(2), expected + network.head.bias[:, None])


def test_a_query_a_class_goes_through_the_encoder():
    config = tiny("mask_queries", classes=7, cls_token=False, pool="mean")
    assert (config.queries, config.prefix) == (7, 7)
    assert config.replace(classes=3).queries == 3
    assert config.replace(head="linear").queries == 0
    assert ViT(config).queries.shape == (7, 32)


def test_as_many_queries_as_classes():
    with pytest.raises(VitrailError, match="one query a class: set queries to 5, not 3"):
        tiny("mask_queries", queries=3)


def test_the_decoder_answers_at_half_the_resolution():
    for patch in (4, 8, 16):
        config = tiny("mask_decoder", patch_size=patch, image_size=2 * patch, width=16, heads=2)
        logits = ViT(config).eval()(torch.randn(1, 3, 2 * patch, 4 * patch))
        assert logits.shape == (1, 5, patch, 2 * patch)


def test_the_decoder_sees_more_than_patches():
    """Two pictures whose patches differ by a shuffle inside of one patch have different masks there."""
    network = model("mask_decoder")
    one, other = torch.zeros(1, 3, 16, 16), torch.zeros(1, 3, 16, 16)
    one[..., 4, 4], other[..., 7, 7] = 5.0, 5.0
    with torch.no_grad():
        assert (network(one) - network(other)).abs().max() > 1e-4


@pytest.mark.parametrize("patch", [4, 8, 16, (8, 16)], ids=str)
def test_the_decoder_takes_in_what_a_conv_stem_saw(patch):
    """No convolutions of its own on the picture, and the maps it takes matter at their place."""
    size = tuple(2 * side for side in ((patch, patch) if isinstance(patch, int) else patch))
    network = model("mask_decoder", stem="conv", patch_size=patch, image_size=size, width=32, heads=2)
    assert not list(network.head.convs.details)
    seen = network.encoder_features(torch.randn(1, 3, *size), network.head.out_indices)
    assert [seen.maps[i].shape[2] for i in network.head.maps] == [
        size[0] // stride for stride in finer_strides(network.config.patch_size)
    ]
    changed = [x + 0.0 for x in seen.maps]
    changed[0][..., 0, 0] += 1
    with torch.no_grad():
        difference = (network.head(seen) - network.head(seen._replace(maps=tuple(changed)))).abs().sum(1)[0]
    assert difference[0, 0] > 0
    assert (difference[2:] == 0).all()


def test_patches_of_no_power_of_two_have_details_of_their_own():
    network = model("mask_decoder", stem="conv", patch_size=14, image_size=28, width=32, heads=2)
    assert len(network.head.convs.details) == 3
    assert network(torch.randn(1, 3, 28, 42)).shape == (1, 5, 14, 21)


def test_blocks_are_read_evenly_and_the_last_one_always():
    assert spread_indices(12, 4) == (2, 5, 8, 11)
    assert spread_indices(4, 4) == (0, 1, 2, 3)
    assert spread_indices(2, 4) == (0, 1)
    assert spread_indices(1, 4) == (0,)
    assert spread_indices(6, 4) == (0, 2, 3, 5)


def test_resolutions_between_the_grid_and_the_answer():
    assert finer_strides((16, 16)) == [8, 4, 2]
    assert finer_strides((14, 14)) == [8, 4, 2]
    assert finer_strides((8, 16)) == [4, 2]
    assert finer_strides((4, 4)) == [2]
    assert finer_strides((2, 2)) == finer_strides((1, 1)) == []


@pytest.mark.parametrize("head", HEADS)
def test_fresh_heads_are_undecided(head):
    logits = model(head)(torch.randn(2, 3, 16, 16))
    assert logits.std() < 1
    assert logits.std() > 1e-4


@pytest.mark.parametrize("head", HEADS)
def test_a_model_with_the_head_has_no_other(head):
    network = model(head)
    kinds = {"mask_linear": LinearMasks, "mask_decoder": MaskDecoder, "mask_queries": MaskQueries}
    assert type(network.head) is kinds[head]
    assert ViT(tiny(head, classes=0)).head is None


def test_widths_of_heads():
    assert ViTConfig(head="mask_decoder").head_width == 256
    assert ViTConfig(head="mask_decoder", width=96, heads=6).head_width == 96
    assert ViTConfig(head="mask_decoder").replace(width=192, heads=6).head_width == 192
    assert ViTConfig(head="mask_decoder", head_width=48).replace(width=192, heads=6).head_width == 48
    assert ViTConfig(head="mask_decoder", head_width=48).replace(head="linear").head_width is None
    assert ViTConfig.from_json(ViTConfig(head="mask_queries", classes=9).to_json()).queries == 9
    with pytest.raises(VitrailError, match="head_width 64 goes with"):
        ViTConfig(head="mask_linear", head_width=64)


@pytest.mark.parametrize("head", HEADS)
def test_a_head_learns_a_picture_by_heart(head):
    """Left half one class, right half another: a few steps are enough."""
    torch.manual_seed(0)
    network = ViT(tiny(head, classes=2, stem="conv"))
    images = torch.randn(4, 3, 16, 16)
    images[..., 8:] += 2
    truth = torch.zeros(4, 16, 16, dtype=torch.int64)
    truth[..., 8:] = 1
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for _ in range(30):
        logits = F.interpolate(network(images), size=(16, 16), mode="bilinear", align_corners=False)
        loss = F.cross_entropy(logits, truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3
