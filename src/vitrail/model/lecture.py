"""The problem one lecture sets: one image in, the logits of a seeded ViT out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.patches import images_from
from vitrail.model.vit import ViT


def vit_cls_forward(
    seed: int, image: Any, patch_size: int, d_model: int, num_heads: int, d_ff: int, num_layers: int, num_classes: int
) -> Tensor:
    """One image (H, W, C), a tensor or an array -> logits (num_classes,). The same seed gives the same answer.

    Patches by a strided map, [CLS] from normal(0.02) before them, N + 1 learned positions, pre-norm blocks, a final
    norm, slot 0, one dense layer. The weights are drawn from the seed alone; the caller's random state stays as it was.
    """
    return _forward(seed, image, patch_size, d_model, num_heads, d_ff, num_layers, num_classes, cls_token=True)


def vit_mean_forward(
    seed: int, image: Any, patch_size: int, d_model: int, num_heads: int, d_ff: int, num_layers: int, num_classes: int
) -> Tensor:
    """`vit_cls_forward` without [CLS]: N learned positions, and the mean of the patch tokens instead of slot 0."""
    return _forward(seed, image, patch_size, d_model, num_heads, d_ff, num_layers, num_classes, cls_token=False)


def _forward(
    seed: int, image: Any, patch: int, width: int, heads: int, mlp: int, depth: int, classes: int, cls_token: bool
) -> Tensor:
    pixels = torch.as_tensor(image)
    if pixels.dim() != 3:
        raise VitrailError(f"the image has shape (height, width, channels), 3 numbers, not {tuple(pixels.shape)}")
    config = ViTConfig(
        image_size=(pixels.shape[0], pixels.shape[1]),
        patch_size=(patch, patch),
        channels=pixels.shape[2],
        width=width,
        heads=heads,
        mlp_width=mlp,
        depth=depth,
        classes=classes,
        cls_token=cls_token,
        pool="cls" if cls_token else "mean",
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(int(seed))  # the CPU's alone: torch.manual_seed would reseed every GPU too
        model = ViT(config).eval()
        return model(images_from(pixels))[0]
