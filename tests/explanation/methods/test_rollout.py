"""Rollout against the slow way: whole matrices, multiplied."""

from __future__ import annotations

import pytest
import torch

from vitrail.errors import VitrailError
from vitrail.explanation.forward_pass import run_steps
from vitrail.explanation.methods.rollout import rollout
from vitrail.model.config import ViTConfig

VARIANTS = {
    "plain": {},
    "registers": {"registers": 3},
    "distilled": {"distillation": True},
    "mean": {"cls_token": False, "pool": "mean"},
    "both": {"pool": "cls_mean"},
    "attention pool": {"cls_token": False, "pool": "attention"},
    "rotary": {"positions": "rotary"},
    "post-norm": {"norm": "post"},
}


def small(lively, **changes):
    config = {"image_size": 32, "patch_size": 8, "width": 32, "heads": 2, "depth": 3, "classes": 3, **changes}
    return lively(ViTConfig(**config))


def matrices(model, images):
    """Each block's attention, (B, heads, M, M), by plain softmax."""
    found = []
    for step in run_steps(model, images):
        q, k, _ = step.qkv()
        found.append((q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1))
    return found


def read_rows(model, product, images):
    prefix, pool = model.config.prefix, model.config.pool
    if pool == "attention":
        last = run_steps(model, images)[-1].output
        query, x = model.pool.attention, model.norm(last)
        q = query.q(query.query).view(2, 16)
        k = query.kv(x)[..., :32].reshape(2, -1, 2, 16)
        start = torch.einsum("hd,bmhd->bhm", q / 4, k).softmax(-1).mean(1)
        return torch.einsum("bm,bmn->bn", start, product)
    cls, mean = product[:, : 1 + model.config.distillation].mean(1), product[:, prefix:].mean(1)
    return {"cls": cls, "mean": mean, "cls_mean": (cls + mean) / 2}[pool]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("fuse", ["mean", "max", "min"])
@pytest.mark.parametrize("discard", [0.0, 0.4])
@torch.no_grad()
def test_rollout_is_the_product_of_all_blocks(variant, fuse, discard, lively):
    model = small(lively, **VARIANTS[variant])
    images = torch.randn(2, 3, 24, 40)
    product = None
    for a in matrices(model, images):
        a = {"mean": a.mean(1), "max": a.max(1).values, "min": a.min(1).values}[fuse].clone()  # (B, M, M)
        for image in a:
            for row in image:  # every image, not only the first
                patches = row[model.config.prefix :]
                patches[patches.argsort()[: int(15 * discard)]] = 0
        a = a / a.sum(dim=-1, keepdim=True)
        step = (a + torch.eye(a.shape[1])) / 2
        product = step if product is None else step @ product
    found = rollout(model, images, fuse=fuse, discard=discard)
    expected = read_rows(model, product, images)
    assert found.patches.shape == (2, 3, 5)
    values = torch.cat([found.prefix, found.patches.flatten(1)], dim=1)
    assert (values - expected).abs().max() <= 1e-6
    assert (values.sum(1) - 1).abs().max() <= 1e-5


@torch.no_grad()
def test_an_image_has_the_same_rollout_alone_and_in_a_batch(lively):
    model = small(lively, registers=2)
    images = torch.randn(3, 3, 32, 48)
    together = rollout(model, images, discard=0.5).patches
    alone = torch.cat([rollout(model, image[None], discard=0.5).patches for image in images])
    assert (together - alone).abs().max() <= 1e-6


def test_wrong_choices_are_errors(lively):
    model, images = small(lively), torch.randn(1, 3, 32, 32)
    with pytest.raises(VitrailError, match="fuse is 'sum'; choose one of mean, max, min"):
        rollout(model, images, fuse="sum")
    with pytest.raises(VitrailError, match="discard is 1.0; it is a share"):
        rollout(model, images, discard=1.0)
