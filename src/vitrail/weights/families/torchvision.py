"""torchvision's Vision Transformers, .pth: vit_b_16, vit_b_32, vit_l_16, vit_l_32, vit_h_14."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrail.model.config import ViTConfig
from vitrail.tasks.registry import task_of_outputs
from vitrail.weights.family import Foreign, count_blocks, count_heads, native_size, shape_of
from vitrail.weights.naming import Names, to_ours
from vitrail.weights.preprocessing import IMAGENET, Preprocessing
from vitrail.weights.source import Source

NAME = "torchvision"

# ---- names of tensors

BLOCK = "encoder.layers.encoder_layer_{i}."
ATTENTION = BLOCK + "self_attention."
RENAMED = (  # as the first files have it, and as torchvision writes it now
    (r"\.mlp\.linear_1\.", ".mlp.0."),
    (r"\.mlp\.linear_2\.", ".mlp.3."),
)
NAMES = Names(
    modules={
        "stem.projection": "conv_proj",
        "blocks.{i}.norm1": BLOCK + "ln_1",
        "blocks.{i}.attention.out": ATTENTION + "out_proj",
        "blocks.{i}.norm2": BLOCK + "ln_2",
        "blocks.{i}.mlp.up": BLOCK + "mlp.0",
        "blocks.{i}.mlp.down": BLOCK + "mlp.3",
        "norm": "encoder.ln",
        "head.out": "heads.head",
    },
    tensors={
        "cls_token": "class_token",
        "positions.table": "encoder.pos_embedding",
        "blocks.{i}.attention.qkv.weight": ATTENTION + "in_proj_weight",
        "blocks.{i}.attention.qkv.bias": ATTENTION + "in_proj_bias",
    },
)


def recognises(source: Source) -> bool:
    """Whether the tensors have torchvision's names."""
    return "conv_proj.weight" in source.tensors and "encoder.pos_embedding" in source.tensors


def convert(source: Source, settings: Mapping[str, Any]) -> Foreign:
    """torchvision's tensors as a config, tensors and preprocessing of ours."""
    tensors = _renamed(source.tensors)
    width, channels, down, across = shape_of(tensors, "conv_proj.weight", 4)
    heads, heads_from = count_heads(width, settings)
    config = ViTConfig(
        image_size=native_size(shape_of(tensors, "encoder.pos_embedding", 3)[1] - 1, (down, across), settings),
        patch_size=(down, across),
        channels=channels,
        width=width,
        depth=count_blocks(tensors, "encoder.layers.encoder_layer_"),
        heads=heads,
        mlp_width=shape_of(tensors, f"{BLOCK}mlp.0.weight".replace("{i}", "0"), 2)[0],
        norm_eps=1e-6,
        resample="bicubic",
        classes=shape_of(tensors, "heads.head.weight", 2)[0] if "heads.head.weight" in tensors else 0,
    )
    preprocessing, note = _preprocessing(config)
    return Foreign(
        config=config,
        tensors=to_ours(tensors, NAMES, config),
        preprocessing=preprocessing,
        heads_from=heads_from,
        task=task_of_outputs(config.classes),
        notes=[note],
    )


def _renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for first, now in RENAMED:
            name = re.sub(first, now, name)
        renamed[name] = tensor
    return renamed


# ---- preprocessing


def _preprocessing(config: ViTConfig) -> tuple[Preprocessing, str]:
    """Of the weights at 224 px: the shorter side to 256. Those above are SWAG's, which cut nothing off it."""
    swag = config.image_size[0] > 224
    mean, std = IMAGENET
    published = Preprocessing(
        size=config.image_size,
        crop_fraction=1.0 if swag else 224 / 256,
        interpolation="bicubic" if swag else "bilinear",
        mean=mean,
        std=std,
        crop_offset="round",
    )
    note = (
        f"its file does not tell how images are prepared: the shorter side to {published.before_crop[0]} px, then the "
        f"middle {config.image_size}, {published.interpolation}, were assumed, as for most of torchvision's weights"
    )
    return published.for_channels(config.channels), note
