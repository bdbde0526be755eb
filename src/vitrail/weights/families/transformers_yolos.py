"""transformers' YOLOS: a plain ViT with detection tokens among its patches, and two small heads that read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.weights.families.transformers_json import (
    Shapes,
    Usual,
    encoder_fields,
    known_type,
    read_labels,
    read_normalisation,
    without_nulls,
)
from vitrail.weights.family import Foreign, count_blocks, notes_on_unused, shape_of
from vitrail.weights.naming import Names, to_ours
from vitrail.weights.preprocessing import IMAGENET, Preprocessing
from vitrail.weights.source import Source

NAME = "transformers-yolos"

# ---- names of tensors

PREFIX = "vit."
PATCHES = "embeddings.patch_embeddings.projection"
QUERIES = "embeddings.detection_tokens"
POSITIONS = "embeddings.position_embeddings"
BLOCK_POSITIONS = "encoder.mid_position_embeddings"
IN_MEMORY = "encoder.interpolation.mid_position_embeddings"  # as a state dict of transformers 5 calls it
CLASSES = "class_labels_classifier.layers.2.weight"
LAYER = "encoder.layer."

MODULES: dict[str, str | tuple[str, ...]] = {
    "stem.projection": PATCHES,
    "blocks.{i}.norm1": "encoder.layer.{i}.layernorm_before",
    "blocks.{i}.attention.qkv": tuple(
        f"encoder.layer.{{i}}.attention.attention.{part}" for part in ("query", "key", "value")
    ),
    "blocks.{i}.attention.out": "encoder.layer.{i}.attention.output.dense",
    "blocks.{i}.norm2": "encoder.layer.{i}.layernorm_after",
    "blocks.{i}.mlp.up": "encoder.layer.{i}.intermediate.dense",
    "blocks.{i}.mlp.down": "encoder.layer.{i}.output.dense",
    "norm": "layernorm",
    **{f"head.classify.layers.{i}": f"class_labels_classifier.layers.{i}" for i in range(3)},
    **{f"head.locate.layers.{i}": f"bbox_predictor.layers.{i}" for i in range(3)},
}
TENSORS = {
    "cls_token": "embeddings.cls_token",
    "queries": QUERIES,
    "positions.table": POSITIONS,
    "block_positions.table": BLOCK_POSITIONS,
}
IGNORED = {"pooler.": "the pooler was left out: a tanh layer of transformers on [CLS], which no published head reads"}

# ---- config and preprocessing

USUAL = Usual(1e-12, "gelu", "bicubic", "Yolos", Preprocessing(resize="pad", mean=IMAGENET[0], std=IMAGENET[1]))
TYPES = {"yolos": USUAL}


def recognises(source: Source) -> bool:
    """Whether there are detection tokens."""
    return any(name.endswith(QUERIES) for name in source.tensors)


def convert(source: Source, settings: Mapping[str, Any]) -> Foreign:
    """YOLOS as a config, tensors and preprocessing of ours, its tokens in our order."""
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in source.tensors.items()}
    if IN_MEMORY in tensors:
        tensors[BLOCK_POSITIONS] = tensors.pop(IN_MEMORY)
    stored = without_nulls(source.config)
    if "model_type" in stored:
        known_type(stored["model_type"], TYPES)
    if CLASSES not in tensors:
        raise VitrailError(f"the weights lack {CLASSES}: load a YOLOS with its heads (YolosForObjectDetection)")
    notes = notes_on_unused(tensors, IGNORED)
    queries = shape_of(tensors, QUERIES, 3)[1]
    fields, heads_from = encoder_fields(stored, USUAL, _shapes(tensors, queries), settings)
    config = ViTConfig(
        **fields,
        qkv_bias=f"{LAYER}0.attention.attention.query.bias" in tensors,
        block_positions=BLOCK_POSITIONS in tensors,
        head="box_tokens",
        queries=queries,
        classes=shape_of(tensors, CLASSES, 2)[0] - 1,
    )
    mean, std = read_normalisation(source.preprocessor, USUAL, config.channels)
    notes.append(
        f"the processor leaves images at their own aspect; Vitrail fits them into {config.image_size} and pads the rest"
    )
    return Foreign(
        config=config,
        tensors=to_ours(_reordered(tensors, queries), Names(MODULES, TENSORS, tuple(IGNORED)), config),
        preprocessing=Preprocessing(size=config.image_size, resize="pad", interpolation="bilinear", mean=mean, std=std),
        heads_from=heads_from,
        task="detect",
        labels=read_labels(stored, config.classes),
        notes=notes,
    )


def _shapes(tensors: Mapping[str, Tensor], queries: int) -> Shapes:
    return Shapes(
        patch=shape_of(tensors, f"{PATCHES}.weight", 4),
        depth=count_blocks(tensors, LAYER),
        mlp_width=shape_of(tensors, f"{LAYER}0.intermediate.dense.weight", 2)[0],
        positions=shape_of(tensors, POSITIONS, 3)[1] - 1 - queries,
    )


def _reordered(tensors: Mapping[str, Tensor], queries: int) -> dict[str, Tensor]:
    """Their tokens are [CLS], patches, detection tokens; ours have the patches last. Queries have no position of their
    own here, so theirs is added to them once and for all."""
    reordered = dict(tensors)
    cls, patches, query_positions = _split_positions(tensors[POSITIONS], queries)
    reordered[POSITIONS] = torch.cat([cls, patches], dim=-2)
    reordered[QUERIES] = tensors[QUERIES] + query_positions
    if BLOCK_POSITIONS in tensors:
        cls, patches, query_positions = _split_positions(tensors[BLOCK_POSITIONS], queries)
        reordered[BLOCK_POSITIONS] = torch.cat([cls, query_positions, patches], dim=-2)
    return reordered


def _split_positions(table: Tensor, queries: int) -> tuple[Tensor, ...]:
    """(..., 1 + N + Q, D) -> the parts of [CLS], of the patches, of the detection tokens."""
    if table.shape[-2] < 2 + queries:
        raise VitrailError(f"a table of {table.shape[-2]} positions has no patches beside {queries} detection tokens")
    return table.split([1, table.shape[-2] - 1 - queries, queries], dim=-2)
