"""transformers' BEiT and BEiT v2, in and out: relative positions, no bias of the keys, layer scale."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.families.tensors.relative_positions import in_every_block, native_size_of_steps
from vitrail.weights.families.transformers_folder import (
    HIDDEN_ACT,
    Writable,
    check_writable,
    head_json,
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
from vitrail.weights.preprocessing import HALF, Preprocessing
from vitrail.weights.source import Source

NAME = "transformers-beit"

# ---- names of tensors

PREFIX = "beit."
PATCHES = "embeddings.patch_embeddings.projection"
POSITIONS = "embeddings.position_embeddings"
LAYER = "encoder.layer."
ATTENTION = LAYER + "{i}.attention.attention."
TABLE = ATTENTION + "relative_position_bias.relative_position_bias_table"
SHARED = "encoder.relative_position_bias.relative_position_bias_table"
POOLED_NORM = "pooler.layernorm"
HEAD = "classifier.weight"
IN_MEMORY = (  # transformers 5 renamed modules in memory; what it saves still has the published names
    (r"^layers\.(\d+)\.relative_position_bias\.", r"encoder.layer.\1.attention.attention.relative_position_bias."),
    (r"^shared_position_bias\.", "encoder.relative_position_bias."),
    (r"^layers\.", LAYER),
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
)
MODULES: dict[str, str | tuple[str, ...]] = {
    "stem.projection": PATCHES,
    "blocks.{i}.norm1": LAYER + "{i}.layernorm_before",
    "blocks.{i}.attention.qkv": (ATTENTION + "query", ATTENTION + "key", ATTENTION + "value"),
    "blocks.{i}.attention.out": LAYER + "{i}.attention.output.dense",
    "blocks.{i}.norm2": LAYER + "{i}.layernorm_after",
    "blocks.{i}.mlp.up": LAYER + "{i}.intermediate.dense",
    "blocks.{i}.mlp.down": LAYER + "{i}.output.dense",
    "head.out": "classifier",
}
TENSORS = {
    "cls_token": "embeddings.cls_token",
    "positions.table": POSITIONS,
    "blocks.{i}.attention.relative_bias.table": TABLE,
    "blocks.{i}.branch1.scale": LAYER + "{i}.lambda_1",
    "blocks.{i}.branch2.scale": LAYER + "{i}.lambda_2",
}
IGNORED = {
    "embeddings.mask_token": "",
    "lm_head.": "the head of its pretraining was left out: it predicts visual tokens",
}

# ---- config and preprocessing

USUAL = Usual(1e-12, "gelu", "bilinear", "Beit", Preprocessing(resize="squash", mean=HALF[0], std=HALF[1]))
TYPES = {"beit": USUAL, "data2vec-vision": USUAL}
EXPRESSED = ("use_mean_pooling", "use_relative_position_bias", "use_shared_relative_position_bias")


def recognises(source: Source) -> bool:
    """Whether there are relative positions beside a patch embedding of transformers, or config.json says BEiT."""
    if not any(name.endswith(f"{PATCHES}.weight") for name in source.tensors):
        return False
    tables = any(name.endswith(("relative_position_bias_table", ".lambda_1")) for name in source.tensors)
    return tables or source.model_type in TYPES


def convert(source: Source, settings: Mapping[str, Any]) -> Foreign:
    """transformers' BEiT as a config, tensors and preprocessing of ours."""
    stored = without_nulls(source.config)
    if "model_type" in stored:
        known_type(stored["model_type"], TYPES)
    tensors = _published_names(source.tensors)
    depth = count_blocks(tensors, LAYER)
    tensors = _with_key_biases(in_every_block(tensors, SHARED, TABLE, depth), depth)
    notes = notes_on_unused(tensors, IGNORED)
    fields, heads_from = encoder_fields(
        {name: value for name, value in stored.items() if name not in EXPRESSED},
        USUAL,
        _shapes(tensors, depth, stored, settings),
        settings,
    )
    relative = TABLE.replace("{i}", "0") in tensors
    pooled = f"{POOLED_NORM}.weight" in tensors
    classes = shape_of(tensors, HEAD, 2)[0] if HEAD in tensors else 0
    config = ViTConfig(
        **{**fields, "resample": "bilinear" if relative else "bicubic"},
        positions="learned" if POSITIONS in tensors else "none",
        relative_bias=relative,
        layer_scale=stored.get("layer_scale_init_value", 0.1) if f"{LAYER}0.lambda_1" in tensors else None,
        pool="mean" if pooled else "cls",
        final_norm="pooled" if pooled else "tokens",
        classes=classes,
    )
    names = Names({**MODULES, "norm": POOLED_NORM if pooled else "layernorm"}, TENSORS, tuple(IGNORED))
    return Foreign(
        config=config,
        tensors=to_ours(tensors, names, config),
        preprocessing=read_preprocessing(source.preprocessor, USUAL, config, notes),
        heads_from=heads_from,
        task=read_task(stored, classes),
        labels=read_labels(stored, classes),
        notes=notes,
    )


def _published_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    published = {}
    for name, tensor in tensors.items():
        name = name.removeprefix("data2vec_vision.").removeprefix(PREFIX)
        for in_memory, in_file in IN_MEMORY:
            name = re.sub(in_memory, in_file, name)
        published[name] = tensor
    return published


def _with_key_biases(tensors: Mapping[str, Tensor], depth: int) -> dict[str, Tensor]:
    filled = dict(tensors)
    for block in range(depth):
        attention = ATTENTION.replace("{i}", str(block))
        query = filled.get(f"{attention}query.bias")
        if query is not None:
            filled.setdefault(f"{attention}key.bias", torch.zeros_like(query))
    return filled


def _shapes(
    tensors: Mapping[str, Tensor], depth: int, stored: Mapping[str, Any], settings: Mapping[str, Any]
) -> Shapes:
    patch = shape_of(tensors, f"{PATCHES}.weight", 4)
    if POSITIONS in tensors:
        positions = shape_of(tensors, POSITIONS, 3)[1] - 1
    else:
        size = native_size_of_steps(tensors, TABLE, (patch[2], patch[3]), settings, stored.get("image_size"))
        positions = (size[0] // patch[2]) * (size[1] // patch[3])
    return Shapes(
        patch=patch,
        depth=depth,
        mlp_width=shape_of(tensors, f"{LAYER}0.intermediate.dense.weight", 2)[0],
        positions=positions,
    )


# ---- back out

WRITABLE: Writable = {  # a field -> the values its BEiT has, and what it has
    "stem": (("linear",), "its patches go through one linear map"),
    "patch_bias": ((True,), "its patch embedding has a bias"),
    "cls_token": ((True,), "it has a [CLS] token"),
    "distillation": ((False,), "it has no distillation token"),
    "registers": ((0,), "it has no registers"),
    "positions": (("learned", "none"), "beside relative positions it adds learned ones or none"),
    "stem_norm": ((False,), "it has no norm before the blocks"),
    "norm": (("pre",), "its blocks are pre-norm"),
    "qk_norm": ((False,), "its attention does not norm queries and keys"),
    "mlp_norm": ((False,), "its MLP has no norm"),
    "attention_norm": ((False,), "its attention has no norm inside"),
    "activation": (("gelu", "gelu_tanh", "quick_gelu"), "its MLP is plain"),
    "head": (("linear",), "its head is one linear layer"),
}
POOLS = (("mean", "pooled"), ("cls", "tokens"), ("cls", "pooled"))


def write_folder(checkpoint: Checkpoint, folder: str | Path) -> None:
    """Write what `AutoModelForImageClassification.from_pretrained(folder)` loads, or `AutoModel` without a head."""
    checkpoint.check()
    config = checkpoint.vit.config
    check_writable(config, WRITABLE)
    if (config.pool, config.final_norm) not in POOLS:
        raise VitrailError(
            f"pool {config.pool!r} with final_norm {config.final_norm!r} cannot be written for transformers: "
            "its BEiT has the mean and then the norm, or [CLS]"
        )
    write_model(folder, checkpoint, _tensors_to_write(checkpoint), _config_json(checkpoint))


def _config_json(checkpoint: Checkpoint) -> dict[str, Any]:
    config = checkpoint.vit.config
    return {
        **vit_json(checkpoint, "beit", "BeitForImageClassification" if config.classes else "BeitModel"),
        "intermediate_size": config.mlp_width,
        "hidden_act": HIDDEN_ACT[config.activation],
        "use_relative_position_bias": True,
        "use_absolute_position_embeddings": config.positions == "learned",
        "use_mean_pooling": config.pool == "mean",
        "layer_scale_init_value": (config.layer_scale or 1e-5) if config.layer_scale is not None else 0.0,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "drop_path_rate": config.drop_path,
        **head_json(config.classes, checkpoint.labels, checkpoint.task),
    }


def _tensors_to_write(checkpoint: Checkpoint) -> dict[str, Tensor]:
    config = checkpoint.vit.config
    state = {name: tensor.detach().cpu() for name, tensor in checkpoint.model.state_dict().items()}
    for block in range(config.depth):
        state.setdefault(f"blocks.{block}.attention.qkv.bias", torch.zeros(3 * config.width))
    if config.classes:
        state.setdefault("head.out.bias", torch.zeros(config.classes))
    names = Names({**MODULES, "norm": POOLED_NORM if config.pool == "mean" else "layernorm"}, TENSORS)
    theirs = to_theirs(state, names, config)
    theirs["embeddings.cls_token"] = theirs["embeddings.cls_token"].reshape(1, 1, -1)
    for name in list(theirs):
        if name.endswith(".attention.attention.key.bias"):
            del theirs[name]  # it adds the same to all scores of a query, which the softmax takes away again
        elif name.endswith("relative_position_bias_table"):
            theirs[name] = theirs[name].squeeze(0)
    if not config.classes:
        return theirs
    return {name if name.startswith("classifier.") else f"{PREFIX}{name}": tensor for name, tensor in theirs.items()}
