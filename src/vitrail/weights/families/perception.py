"""Meta's own Perception Encoder files, .pt: CLIP's names, alone or as the tower `visual.` beside text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.tasks.registry import task_of_outputs
from vitrail.weights.families import timm
from vitrail.weights.families.timm_json import TimmConfig
from vitrail.weights.family import Foreign
from vitrail.weights.naming import to_ours
from vitrail.weights.preprocessing import HALF, Preprocessing
from vitrail.weights.source import Source

NAME = "perception-encoder"

# ---- names of tensors

TOWER = "visual."
PATCHES = "conv1.weight"
RENAMED = (  # Meta's names, and timm's for the same, in this order
    ("conv1.", "patch_embed.proj."),
    ("positional_embedding", "pos_embed"),
    ("class_embedding", "cls_token"),
    ("transformer.resblocks.", "blocks."),
    ("attn_pool.attn.", "attn_pool."),
    ("attn_pool.layernorm.", "attn_pool.norm."),
    ("attn_pool.probe", "attn_pool.latent"),
    ("ln_pre.", "norm_pre."),
    ("ln_post.", "norm."),
    (".ln_", ".norm"),
    (".ls_", ".ls"),
    (".in_proj_", ".qkv."),
    (".out_proj.", ".proj."),
    (".c_fc.", ".fc1."),
    (".c_proj.", ".fc2."),
)


def recognises(source: Source) -> bool:
    """Whether it has CLIP's names, and attention pooling or, as CLIP never has it, no norm after the blocks."""
    tower = TOWER if TOWER + PATCHES in source.tensors else ""
    blocks = f"{tower}transformer.resblocks.0.attn.in_proj_weight"
    if tower + PATCHES not in source.tensors or blocks not in source.tensors:
        return False
    return f"{tower}attn_pool.probe" in source.tensors or f"{tower}ln_post.weight" not in source.tensors


def convert(source: Source, settings: Mapping[str, Any]) -> Foreign:
    """The image tower as a config, tensors and preprocessing of ours."""
    tower = TOWER if TOWER + PATCHES in source.tensors else ""
    inside = {name.removeprefix(tower): t for name, t in source.tensors.items() if name.startswith(tower)}
    tensors, config, heads_from = timm.network(_timm_names(inside), settings, TimmConfig())
    notes = ["the text tower was left out: Vitrail reads the image tower"] if tower else []
    if config.classes:
        notes.append(f"its head of {config.classes} outputs is the projection to what its text tower gives")
    mean, std = HALF
    preprocessing = Preprocessing(size=config.image_size, resize="squash", interpolation="bilinear", mean=mean, std=std)
    return Foreign(
        config=config,
        tensors=to_ours(tensors, timm.names(config), config),
        preprocessing=preprocessing.for_channels(config.channels),
        heads_from=heads_from,
        task=task_of_outputs(0),
        notes=notes,
    )


def _timm_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for of_meta, of_timm in RENAMED:
            name = name.replace(of_meta, of_timm)
        renamed[name] = tensor
    for end in ("weight", "bias"):
        stacked = renamed.pop(f"attn_pool.qkv.{end}", None)
        if stacked is not None:
            parts = torch.atleast_1d(stacked).tensor_split(3)
            renamed[f"attn_pool.q.{end}"], renamed[f"attn_pool.kv.{end}"] = parts[0], torch.cat(parts[1:])
    if "proj" in renamed:  # (D, outputs), without a bias
        renamed["head.weight"] = renamed.pop("proj").T if renamed["proj"].dim() == 2 else renamed.pop("proj")
    if "pos_embed" in renamed:
        renamed["pos_embed"] = renamed["pos_embed"].unsqueeze(0)
    return renamed
