"""transformers' image towers of CLIP and SigLIP, alone, with a head, or beside a text tower that is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.weights.families.transformers_json import (
    Shapes,
    Usual,
    encoder_fields,
    known_type,
    read_labels,
    read_preprocessing,
    read_task,
    tower_config,
    without_nulls,
)
from vitrail.weights.family import Foreign, count_blocks, notes_on_unused, shape_of
from vitrail.weights.naming import Names, to_ours
from vitrail.weights.preprocessing import CLIP, HALF, Preprocessing
from vitrail.weights.source import Source

NAME = "transformers-towers"

# ---- names of tensors

PREFIX = "vision_model."
PATCHES = "embeddings.patch_embedding.weight"
CLS = "embeddings.class_embedding"
POSITIONS = "embeddings.position_embedding.weight"
PROJECTION = "visual_projection.weight"
CLASSIFIER = "classifier.weight"
PROBE = "head.probe"
LAYER = "encoder.layers."

MODULES: dict[str, str | tuple[str, ...]] = {
    "stem.projection": "embeddings.patch_embedding",
    "stem_norm": "pre_layrnorm",  # so spelt
    "blocks.{i}.norm1": "encoder.layers.{i}.layer_norm1",
    "blocks.{i}.attention.qkv": tuple(f"encoder.layers.{{i}}.self_attn.{letter}_proj" for letter in "qkv"),
    "blocks.{i}.attention.out": "encoder.layers.{i}.self_attn.out_proj",
    "blocks.{i}.norm2": "encoder.layers.{i}.layer_norm2",
    "blocks.{i}.mlp.up": "encoder.layers.{i}.mlp.fc1",
    "blocks.{i}.mlp.down": "encoder.layers.{i}.mlp.fc2",
    "norm": "post_layernorm",
    "pool.attention.q": "head.attention.q_proj",
    "pool.attention.kv": ("head.attention.k_proj", "head.attention.v_proj"),
    "pool.attention.out": "head.attention.out_proj",
    "pool.attention.norm": "head.layernorm",
    "pool.attention.mlp.up": "head.mlp.fc1",
    "pool.attention.mlp.down": "head.mlp.fc2",
}
TENSORS = {"cls_token": CLS, "positions.table": POSITIONS, "pool.attention.query": PROBE}

TEXT = "the text tower was left out: Vitrail reads the image tower"
IGNORED = {"text_model.": TEXT, "text_projection.": "", "logit_": "", "embeddings.position_ids": ""}
UNUSED_POOLING = "the attention pooling was left out: the classifier reads the mean of the patches"
UNUSED_NORM = "the final norm was left out: the classifier reads the mean of the patches before it"

# ---- config and preprocessing, by model_type

_CLIP = Usual(1e-5, "quick_gelu", "bicubic", "CLIP", Preprocessing(mean=CLIP[0], std=CLIP[1]))
_SIGLIP = Usual(
    1e-6, "gelu_pytorch_tanh", "bicubic", "Siglip", Preprocessing(resize="squash", mean=HALF[0], std=HALF[1])
)
TYPES = {"clip": _CLIP, "clip_vision_model": _CLIP, "siglip": _SIGLIP, "siglip_vision_model": _SIGLIP}


def recognises(source: Source) -> bool:
    """Whether there is a patch embedding under CLIP's and SigLIP's name."""
    return any(name.endswith(PATCHES) for name in source.tensors)


def convert(source: Source, settings: Mapping[str, Any]) -> Foreign:
    """The image tower as a config, tensors and preprocessing of ours; what is left out is noted."""
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in source.tensors.items()}
    whole = without_nulls(source.config)
    tower = tower_config(whole)
    usual = _usual(whole, tensors)
    head, ignored = _head_fields(tensors)
    notes = notes_on_unused(tensors, ignored)
    if not tower:
        notes.append(f"there is no config.json: hidden_act {usual.hidden_act!r} was assumed, as published first")
    if head["pool"] == "mean" and not head["classes"]:
        notes.append("it has no pooling of its own: the mean of its patches was chosen")
    fields, heads_from = encoder_fields(tower, usual, _shapes(tensors), settings)
    config = ViTConfig(
        **fields,
        **head,
        patch_bias="embeddings.patch_embedding.bias" in tensors,
        cls_token=CLS in tensors,
        stem_norm="pre_layrnorm.weight" in tensors,
    )
    classes = config.classes if CLASSIFIER in tensors else 0
    modules = {**MODULES, "head.out": "classifier" if classes else "visual_projection"}
    return Foreign(
        config=config,
        tensors=to_ours(_split_pooling(tensors), Names(modules, TENSORS, tuple(ignored)), config),
        preprocessing=read_preprocessing(source.preprocessor, usual, config, notes),
        heads_from=heads_from,
        task=read_task(whole, classes),
        labels=read_labels(whole, classes),
        notes=notes,
    )


def _usual(stored: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Usual:
    if str(stored.get("model_type")).startswith("siglip2"):
        raise VitrailError(
            "it is a NaFlex SigLIP 2, for images of any size: take one of fixed size, such as siglip2-base-patch16-224"
        )
    return TYPES[known_type(stored.get("model_type", "clip" if CLS in tensors else "siglip"), TYPES)]


def _head_fields(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, str]]:
    """How the tokens become an answer, as fields of ViTConfig, and which tensors that leaves unused."""
    if CLASSIFIER in tensors:  # both families: the mean of the patches, in CLIP before and in SigLIP after the norm
        classes = shape_of(tensors, CLASSIFIER, 2)[0]
        if CLS in tensors:
            ignored = {**IGNORED, "post_layernorm.": UNUSED_NORM, PROJECTION: ""}
            return {"pool": "mean", "final_norm": "none", "classes": classes}, ignored
        return {"pool": "mean", "classes": classes}, {**IGNORED, "head.": UNUSED_POOLING}
    if CLS in tensors:
        classes = shape_of(tensors, PROJECTION, 2)[0] if PROJECTION in tensors else 0
        return {"pool": "cls", "final_norm": "pooled", "classes": classes, "head_bias": False}, IGNORED
    return {"pool": "attention" if PROBE in tensors else "mean", "classes": 0}, IGNORED


def _shapes(tensors: Mapping[str, Tensor]) -> Shapes:
    return Shapes(
        patch=shape_of(tensors, PATCHES, 4),
        depth=count_blocks(tensors, LAYER),
        mlp_width=shape_of(tensors, f"{LAYER}0.mlp.fc1.weight", 2)[0],
        positions=shape_of(tensors, POSITIONS, 2)[0] - int(CLS in tensors),
    )


def _split_pooling(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """torch's MultiheadAttention stacks the maps to queries, keys and values: (3 D, D)."""
    split = dict(tensors)
    for end in ("weight", "bias"):
        stacked = split.pop(f"head.attention.in_proj_{end}", None)
        if stacked is not None:
            if stacked.dim() == 0 or len(stacked) % 3:
                raise VitrailError(f"head.attention.in_proj_{end} has shape {tuple(stacked.shape)}, not 3 maps in one")
            for letter, part in zip("qkv", stacked.chunk(3), strict=True):
                split[f"head.attention.{letter}_proj.{end}"] = part
    return split
