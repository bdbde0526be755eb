"""transformers' DINOv3, in and out: rotary positions, registers, a plain or a gated MLP."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.families.transformers_folder import (
    HIDDEN_ACT,
    Writable,
    check_writable,
    vit_json,
    write_model,
)
from vitrail.weights.families.transformers_json import (
    Shapes,
    Usual,
    encoder_fields,
    known_type,
    read_labels,
    read_preprocessing,
    read_task,
    without_nulls,
)
from vitrail.weights.family import Foreign, count_blocks, notes_on_unused, shape_of
from vitrail.weights.naming import Names, to_ours, to_theirs
from vitrail.weights.preprocessing import IMAGENET, Preprocessing
from vitrail.weights.source import Source

NAME = "transformers-dinov3"

# ---- names of tensors

PATCHES = "embeddings.patch_embeddings.weight"  # a convolution itself, where other ViTs have `.projection`
CLS = "embeddings.cls_token"
REGISTERS = "embeddings.register_tokens"
MASK = "embeddings.mask_token"
LAYER = "layer."
IN_MEMORY = "model.layer."  # transformers 5 writes the first
HEAD = "classifier.weight"

MODULES: dict[str, str | tuple[str, ...]] = {
    "stem.projection": "embeddings.patch_embeddings",
    "blocks.{i}.norm1": "layer.{i}.norm1",
    "blocks.{i}.attention.qkv": tuple(f"layer.{{i}}.attention.{letter}_proj" for letter in "qkv"),
    "blocks.{i}.attention.out": "layer.{i}.attention.o_proj",
    "blocks.{i}.norm2": "layer.{i}.norm2",
    "blocks.{i}.mlp.down": "layer.{i}.mlp.down_proj",
    "norm": "norm",
    "head.out": "classifier",
}
PLAIN: dict[str, str | tuple[str, ...]] = {"blocks.{i}.mlp.up": "layer.{i}.mlp.up_proj"}
GATED: dict[str, str | tuple[str, ...]] = {"blocks.{i}.mlp.up": ("layer.{i}.mlp.gate_proj", "layer.{i}.mlp.up_proj")}
TENSORS = {
    "cls_token": CLS,
    "registers": REGISTERS,
    "blocks.{i}.branch1.scale": "layer.{i}.layer_scale1.lambda1",
    "blocks.{i}.branch2.scale": "layer.{i}.layer_scale2.lambda1",
}
IGNORED = {MASK: "", "rope_embeddings.": ""}

# ---- config and preprocessing

USUAL = Usual(
    1e-5,
    "gelu",
    "bicubic",
    "DINOv3ViT",
    Preprocessing(resize="squash", interpolation="bilinear", mean=IMAGENET[0], std=IMAGENET[1]),
)
TYPES = {"dinov3_vit": USUAL}


def recognises(source: Source) -> bool:
    """Whether there is a patch embedding under DINOv3's own name."""
    return any(name.endswith(PATCHES) for name in source.tensors)


def convert(source: Source, settings: Mapping[str, Any]) -> Foreign:
    """transformers' DINOv3 as a config, tensors and preprocessing of ours."""
    tensors = _published_names(source.tensors)
    stored = without_nulls(source.config)
    if "model_type" in stored:
        known_type(stored["model_type"], TYPES)
    gated = f"{LAYER}0.mlp.gate_proj.weight" in tensors
    shapes = _shapes(tensors, stored, settings)
    if "num_attention_heads" not in stored:
        stored["num_attention_heads"] = {1280: 20, 4096: 32}.get(shapes.width)
        stored = without_nulls(stored)
    if gated and stored.get("hidden_act", "silu") == "silu":
        stored["hidden_act"] = "gelu"  # what the gate goes through is silu; the rest of the config has no silu
    elif gated:
        raise VitrailError(f"config.json has hidden_act {stored['hidden_act']!r} in a gated MLP; Vitrail has silu")
    fields, heads_from = encoder_fields(stored, USUAL, shapes, settings)
    classes = shape_of(tensors, HEAD, 2)[0] if HEAD in tensors else 0
    config = ViTConfig(
        **{**fields, "activation": "swiglu" if gated else fields["activation"]},
        registers=shape_of(tensors, REGISTERS, 3)[1] if REGISTERS in tensors else 0,
        positions="rotary",
        rotary_base=stored.get("rope_theta", 100.0),
        qkv_bias=any(f"{LAYER}0.attention.{letter}_proj.bias" in tensors for letter in "qkv"),
        layer_scale=stored.get("layerscale_value", 1.0),
        classes=classes,
    )
    names = Names({**MODULES, **(GATED if gated else PLAIN)}, TENSORS, tuple(IGNORED))
    notes = notes_on_unused(tensors, IGNORED)
    return Foreign(
        config=config,
        tensors=to_ours(_with_biases(tensors, config), names, config),
        preprocessing=read_preprocessing(source.preprocessor, USUAL, config, notes),
        heads_from=heads_from,
        task=read_task(stored, classes),
        labels=read_labels(stored, classes),
        notes=notes,
    )


def _published_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = next(name for name in tensors if name.endswith(PATCHES)).removesuffix(PATCHES)
    inside = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    published = {}
    for name, tensor in inside.items():
        published[name.removeprefix("model.") if name.startswith(IN_MEMORY) else name] = tensor
    if not published.get(REGISTERS, torch.ones(1)).numel():  # transformers has an empty one where there are none
        del published[REGISTERS]
    return published


def _shapes(tensors: Mapping[str, Tensor], stored: dict[str, Any], settings: Mapping[str, Any]) -> Shapes:
    """There is no table of positions to show the native size: config.json tells it, or it is the published 224."""
    patch = shape_of(tensors, PATCHES, 4)
    size = stored.get("image_size", settings.get("image_size") or 224)
    height, width = size if isinstance(size, list | tuple) and len(size) == 2 else (size, size)
    if type(height) is not int or type(width) is not int:
        raise VitrailError(f"config.json has image_size {size!r}, not one or two whole numbers")
    grid = max(height // patch[2], 1), max(width // patch[3], 1)
    stored.setdefault("image_size", [grid[0] * patch[2], grid[1] * patch[3]])
    return Shapes(
        patch=patch,
        depth=count_blocks(tensors, LAYER),
        mlp_width=shape_of(tensors, f"{LAYER}0.mlp.down_proj.weight", 2)[1],
        positions=grid[0] * grid[1],
    )


def _with_biases(tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    """Zeros for the biases that some of queries, keys and values have not: of the published files, the keys."""
    filled = dict(tensors)
    if config.qkv_bias:
        for block in range(config.depth):
            for letter in "qkv":
                filled.setdefault(f"{LAYER}{block}.attention.{letter}_proj.bias", torch.zeros(config.width))
    return filled


# ---- back out

WRITABLE: Writable = {  # a field -> the values its DINOv3 has, and what it has
    "stem": (("linear",), "its patches go through one linear map"),
    "cls_token": ((True,), "it has a [CLS] token"),
    "distillation": ((False,), "it has no distillation token"),
    "positions": (("rotary",), "its DINOv3 adds no positions beside rotary ones"),
    "rotary_grid": ((None,), "it places patches by their centres, as DINOv3"),
    "patch_bias": ((True,), "its patch embedding has a bias"),
    "stem_norm": ((False,), "it has no norm before the blocks"),
    "norm": (("pre",), "its blocks are pre-norm"),
    "qk_norm": ((False,), "its attention does not norm queries and keys"),
    "mlp_norm": ((False,), "its MLP has no norm"),
    "attention_norm": ((False,), "its attention has no norm inside"),
    "activation": (("gelu", "gelu_tanh", "quick_gelu", "swiglu"), "its MLP is plain or gated by silu"),
    "pool": (("cls",), "it gives its [CLS]"),
    "classes": ((0,), "it has no class with rotary positions and a head: --classes 0 writes the encoder"),
}


def write_folder(checkpoint: Checkpoint, folder: str | Path) -> None:
    """Write what `AutoModel.from_pretrained(folder)` loads as a DINOv3."""
    checkpoint.check()
    config = checkpoint.vit.config
    check_writable(config, WRITABLE)
    if config.final_norm == "none":
        raise VitrailError("final_norm 'none' cannot be written for transformers: its final norm comes before pooling")
    notes: list[str] = []
    if config.rotary_bfloat16:
        notes.append("transformers computes rotary periods in float32, this model has them rounded to bfloat16")
    write_model(folder, checkpoint, _tensors_to_write(checkpoint), _config_json(checkpoint), notes)


def _config_json(checkpoint: Checkpoint) -> dict[str, Any]:
    config = checkpoint.vit.config
    return {
        **vit_json(checkpoint, "dinov3_vit", "DINOv3ViTModel"),
        "intermediate_size": config.mlp_width,
        "hidden_act": HIDDEN_ACT.get(config.activation, "silu"),
        "use_gated_mlp": config.activation == "swiglu",
        "rope_theta": config.rotary_base,
        "query_bias": config.qkv_bias,
        "key_bias": config.qkv_bias,
        "value_bias": config.qkv_bias,
        "layerscale_value": 1.0 if config.layer_scale is None else config.layer_scale,
        "num_register_tokens": config.registers,
        "attention_dropout": config.attention_dropout,
        "drop_path_rate": config.drop_path,
    }


def _tensors_to_write(checkpoint: Checkpoint) -> dict[str, Tensor]:
    config = checkpoint.vit.config
    state = {name: tensor.detach().cpu() for name, tensor in checkpoint.model.state_dict().items()}
    ones = torch.ones_like(state["norm.weight"])
    for block in range(config.depth):
        for branch in ("branch1", "branch2"):
            state.setdefault(f"blocks.{block}.{branch}.scale", ones)
    names = Names({**MODULES, **(GATED if config.activation == "swiglu" else PLAIN)}, TENSORS)
    theirs = to_theirs(state, names, config)
    theirs[CLS] = theirs[CLS].reshape(1, 1, -1)
    theirs[MASK] = ones.new_zeros(1, 1, config.width)
    theirs.setdefault(REGISTERS, ones.new_zeros(1, 0, config.width))
    return theirs
