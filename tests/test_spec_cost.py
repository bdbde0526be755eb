"""SPEC 6: cost."""

from __future__ import annotations

import torch

from vitrail.model.config import ViTConfig
from vitrail.model.presets import preset
from vitrail.model.vit import ViT


def test_785_tokens_are_616_225_attention_entries_a_head_and_block():
    config = preset("mu/8")
    assert config.tokens == 785
    model = ViT(config)
    x, *_ = model.embed(torch.zeros(1, 3, 224, 224))
    q, k, _ = model.blocks[0].attention.project(x, None, None)
    scores = q @ k.transpose(-2, -1)  # (1, heads, tokens, tokens)
    assert scores[0, 0].numel() == config.tokens**2 == 616_225


def test_448_px_at_patch_8_are_3136_patches():
    assert ViTConfig(image_size=448, patch_size=8).patches == 3136
    assert ViT(preset("mu/8")).features(torch.zeros(1, 3, 448, 448)).patches.shape == (1, 3136, 32)


def test_half_the_patch_side_is_sixteen_times_the_attention_entries():
    coarse, fine = (ViTConfig(image_size=224, patch_size=patch, cls_token=False, pool="mean") for patch in (16, 8))
    assert fine.tokens == 4 * coarse.tokens
    assert fine.tokens**2 == 16 * coarse.tokens**2


def test_more_patches_cost_no_parameters_but_their_positions():
    def count(**changes):
        with torch.device("meta"):
            return sum(p.numel() for p in ViT(preset("S/16", **changes)).parameters())

    assert count(image_size=448, positions="sincos2d") == count(positions="sincos2d")
    assert count(image_size=448) - count() == (784 - 196) * 384
