"""Maps that are transformers' maps, of a model that stays fused, at a cost that grows with N."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import vitrail
from vitrail.errors import VitrailError
from vitrail.explanation.forward_pass import run_steps
from vitrail.explanation.methods.attention_maps import attention_maps, attention_of_all, mean_of_heads, pool_attention
from vitrail.explanation.token_names import prefix_names, token_index, token_name
from vitrail.model.config import ViTConfig

SMALL = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
FAMILIES = {
    "ViT": ("ViTForImageClassification", "ViTConfig", {"num_labels": 5}, {"interpolate_pos_encoding": True}),
    "registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", {}, {}),
    "DINOv2": ("Dinov2Model", "Dinov2Config", {}, {}),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "registers": {"registers": 3},
    "no cls": {"cls_token": False, "pool": "mean"},
    "rotary": {"positions": "rotary", "registers": 2},
    "post-norm": {"norm": "post"},
    "qk norm": {"qk_norm": True},
    "distilled": {"distillation": True},
    "swiglu": {"activation": "swiglu", "layer_scale": 0.5},
}


def small(lively, **changes):
    config = {"image_size": 32, "patch_size": 8, "width": 32, "heads": 2, "depth": 3, "classes": 3, **changes}
    return lively(ViTConfig(**config))


# ---- against transformers


@pytest.mark.parametrize("size", [(32, 32), (24, 56)], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_maps_are_those_of_transformers_eager_attention(family, size, tmp_path):
    transformers = pytest.importorskip("transformers")
    name, config, more, options = FAMILIES[family]
    settings = {**SMALL, **more} | ({"intermediate_size": 96} if family == "ViT" else {})
    theirs = getattr(transformers, name)(getattr(transformers, config)(**settings, attn_implementation="eager")).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in theirs.parameters():
        parameter.data += 0.15 * torch.randn(parameter.shape, generator=generator)
    theirs.save_pretrained(tmp_path)
    model = vitrail.load(tmp_path).model
    images = torch.randn(2, 3, *size, generator=generator)
    with torch.no_grad():
        expected = theirs(images, output_attentions=True, **options).attentions  # (B, heads, M, M) each
    prefix, grid = model.config.prefix, (size[0] // 8, size[1] // 8)
    queries = ["cls", (1, 2), 0, -1] + (["register 2"] if family == "registers" else [])
    for query in queries:
        token = token_index(query, model.config, grid)
        for found, matrix in zip(attention_maps(model, images, query), expected, strict=True):
            assert found.patches.shape == (2, 4, *grid)
            row = torch.cat([found.prefix, found.patches.flatten(2)], dim=2)
            assert matrix[:, :, token].std() > 1e-3  # an even map would prove nothing
            assert (row - matrix[:, :, token]).abs().max() <= 1e-5
            assert found.prefix.shape[2] == prefix
    for (number, groups), matrix in zip(attention_of_all(model, images), expected, strict=True):
        for queries, keys, weights in groups:
            assert (weights - matrix.mean(1)[:, queries[:, None], keys]).abs().max() <= 1e-5, number


# ---- fused and visible are the same


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_visible_rows_give_what_fused_attention_gives(variant, lively):
    model = small(lively, **VARIANTS[variant])
    images = torch.randn(2, 3, 24, 40)
    for step in run_steps(model, images):
        attention = step.block.attention
        with torch.no_grad():
            rows = torch.cat([rows for _, rows in step.attention()], dim=2)
            _, _, values = step.qkv()
            heads = (rows @ values).transpose(1, 2).flatten(2)
            fused = attention(step.block.attention_input(step.input), step.rope)
            assert (attention.out(heads) - fused).abs().max() <= 1e-5


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_head_sums_to_one_and_looking_changes_nothing(variant, lively):
    model = small(lively, dropout=0.5, drop_path=0.5, **VARIANTS[variant])
    images = torch.randn(3, 3, 24, 40)
    with torch.no_grad():
        before = model(images)
    model.train()
    model.blocks[1].eval()  # a frozen part stays frozen
    modes = [module.training for module in model.modules()]
    query = "cls" if model.config.cls_token else (0, 0)
    for found in attention_maps(model, images, query):
        whole = found.patches.sum((2, 3)) + found.prefix.sum(2)
        assert found.patches.shape == (3, 2, 3, 5)
        assert (whole - 1).abs().max() <= 1e-6
        assert [module.training for module in model.modules()] == modes
        assert torch.is_grad_enabled()
    with torch.no_grad():
        assert torch.equal(model.eval()(images), before)


def test_half_precision_maps_sum_to_one_too(lively):
    model = small(lively).to(torch.bfloat16)
    (found,) = attention_maps(model, torch.randn(1, 3, 32, 32, dtype=torch.bfloat16), blocks=[-1])
    assert found.patches.dtype == torch.float32
    assert (found.patches.sum((2, 3)) + found.prefix.sum(2) - 1).abs().max() <= 1e-6


def test_a_cls_map_of_3137_tokens_holds_no_matrix_of_all_pairs(lively, largest):
    model = small(lively, image_size=448, mlp_width=64, depth=2)
    with largest:
        maps = list(attention_maps(model, torch.randn(1, 3, 448, 448)))
    assert maps[0].patches.shape == (1, 2, 56, 56)
    assert largest.entries <= 3137 * 3 * 64  # Q, K and V side by side are the largest; all pairs would be 9,840,769


# ---- what can be asked for


def test_only_the_blocks_before_the_asked_one_are_run(lively):
    model = small(lively, depth=4)
    ran: list[int] = []
    for number, block in enumerate(model.blocks):
        block.register_forward_pre_hook(lambda *_, number=number: ran.append(number))
    images = torch.randn(1, 3, 32, 32)
    asked = list(attention_maps(model, images, blocks=[1, -2, 1]))
    assert [found.block for found in asked] == [1, 2]
    assert ran == [0, 1]  # the map of block 2 follows from its input
    assert list(attention_maps(model, images, blocks=[])) == []


def test_heads_can_be_chosen_and_averaged(lively):
    model = small(lively, heads=4)
    images = torch.randn(2, 3, 32, 32)
    (all_heads,) = attention_maps(model, images, blocks=[0])
    (some,) = attention_maps(model, images, blocks=[0], heads=[3, 1])
    assert torch.equal(some.patches, all_heads.patches[:, [3, 1]])
    mean = mean_of_heads(all_heads)
    assert (mean.patches.sum((1, 2)) + mean.prefix.sum(1) - 1).abs().max() <= 1e-6


def test_the_query_of_attention_pooling_can_be_looked_at(lively):
    model = small(lively, cls_token=False, pool="attention")
    images = torch.randn(2, 3, 24, 40)
    found = pool_attention(model, images)
    assert found.patches.shape == (2, 2, 3, 5)
    assert (found.patches.sum((2, 3)) - 1).abs().max() <= 1e-6
    pool = model.pool.attention
    with torch.no_grad():
        x = model.features(images).patches
        values = pool.kv(x)[..., 32:].reshape(2, 15, 2, 16).transpose(1, 2)
        pooled = pool.out((found.patches.flatten(2)[:, :, None] @ values).reshape(2, 1, 32))
        expected = (pooled + pool.mlp(pool.norm(pooled))).squeeze(1)
        assert (expected - pool(x)).abs().max() <= 1e-5
    with pytest.raises(VitrailError, match="pools by 'cls'"):
        pool_attention(small(lively), images)


@pytest.mark.parametrize(
    ("query", "token"),
    [("cls", 0), ("[CLS]", 0), ("distillation", 1), ("register 1", 3), ((1, 2), 11), ("1,2", 11), (-1, 18), (4, 4)],
)
def test_tokens_have_names(query, token):
    config = ViTConfig(distillation=True, registers=2, image_size=(48, 80))
    assert token_index(query, config, (3, 5)) == token


def test_names_of_tokens():
    config = ViTConfig(distillation=True, registers=1)
    assert prefix_names(config) == ["[CLS]", "[DIST]", "register 0"]
    assert [token_name(token, config, (3, 5)) for token in (0, 2, 3, 9)] == [
        "[CLS]",
        "register 0",
        "patch 0,0",
        "patch 1,1",
    ]


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("cls", r"no \[CLS\] token: ask for a patch"),
        ((3, 0), "no patch 3,0: the grid has 3 rows and 5 columns"),
        (15, "no token 15: this image has 15"),
        ("nose", "no token 'nose': choose one of a patch from 0,0 to 2,4"),
        (True, "no token True"),
    ],
)
def test_a_token_that_is_not_there_is_an_error(query, why):
    config = ViTConfig(cls_token=False, pool="mean", image_size=(48, 80))
    with pytest.raises(VitrailError, match=why):
        token_index(query, config, (3, 5))


def test_a_block_or_head_that_is_not_there_is_an_error(lively):
    model = small(lively)
    with pytest.raises(VitrailError, match="no block 3: the model has 3, 0 to 2"):
        list(attention_maps(model, torch.randn(1, 3, 32, 32), blocks=[3]))
    with pytest.raises(VitrailError, match="no head 2: a block has 2, 0 to 1"):
        list(attention_maps(model, torch.randn(1, 3, 32, 32), heads=[2]))


@torch.no_grad()
def test_groups_of_a_vit_with_windows_are_its_rows(lively):
    """A patch sees its window and the prefix; prefix tokens see all. None is left out, and none is there twice."""
    config = {"image_size": 40, "patch_size": 8, "width": 32, "heads": 2, "depth": 2, "classes": 3, "registers": 1}
    model = lively(ViTConfig(**config, attention_window=2, global_blocks=1))
    steps = run_steps(model, torch.randn(2, 3, 40, 56))
    assert [step.meeting() is None for step in steps] == [False, True]
    for step in steps:
        rows = torch.cat([rows for _, rows in step.attention()], dim=2)
        whole = torch.zeros_like(rows)
        for queries, keys, weights in step.attention_groups():
            whole[:, :, queries[:, None], keys] += weights
        assert torch.allclose(whole, rows, atol=1e-6)
