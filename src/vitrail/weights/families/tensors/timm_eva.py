"""timm's Eva class in the terms of its VisionTransformer: DINOv3, LingBot-Vision, EVA, EVA-02, Perception Encoder.

And the names that EVA-02's own files have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.weights.families.tensors.rotary_layout import from_neighbours, to_neighbours
from vitrail.weights.families.timm_json import TimmConfig

# ---- names of tensors

RENAMED = (  # Eva's names, and VisionTransformer's for the same
    (r"^(blocks\.\d+)\.gamma_([12])$", r"\1.ls\2.gamma"),
    (r"^(blocks\.\d+)\.mlp\.ffn_ln\.", r"\1.mlp.norm."),  # from here on, of EVA-02's own files
    (r"^(blocks\.\d+)\.attn\.inner_attn_ln\.", r"\1.attn.norm."),
    (r"^(blocks\.\d+)\.mlp\.w1\.", r"\1.mlp.fc1_g."),
    (r"^(blocks\.\d+)\.mlp\.w2\.", r"\1.mlp.fc1_x."),
    (r"^(blocks\.\d+)\.mlp\.w3\.", r"\1.mlp.fc2."),
)
COMPUTED = r"(^|\.)rope\.freqs_(cos|sin)$"  # of EVA-02's own files: what its rotary positions are computed to
STACKED = (  # parts that are one tensor in VisionTransformer; of a part that is not there, zeros
    ("attn.qkv.weight", ("attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight")),
    ("attn.qkv.bias", ("attn.q_proj.bias", "attn.k_proj.bias", "attn.v_proj.bias")),
    ("attn.qkv.bias", ("attn.q_bias", "attn.k_bias", "attn.v_bias")),  # keys have no bias
    ("mlp.fc1.weight", ("mlp.fc1_g.weight", "mlp.fc1_x.weight")),  # SwiGLU: the gate first
    ("mlp.fc1.bias", ("mlp.fc1_g.bias", "mlp.fc1_x.bias")),
)


def plain_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under the names of timm's VisionTransformer, whichever of its two classes they are of."""
    renamed = {}
    for name, tensor in tensors.items():
        for of_eva, plain in RENAMED:
            name = re.sub(of_eva, plain, name)
        if not re.search(COMPUTED, name):
            renamed[name] = tensor
    for block in sorted({match[0] for name in renamed if (match := re.match(r"blocks\.\d+\.", name))}):
        for whole, parts in STACKED:
            there = [renamed.pop(block + part, None) for part in parts]
            first = next((part for part in there if part is not None), None)
            if first is not None and block + whole not in renamed:
                filled = [torch.zeros_like(first) if part is None else part for part in there]
                if len({part.shape for part in filled}) > 1 or not first.dim():
                    shapes = ", ".join(str(tuple(part.shape)) for part in filled)
                    raise VitrailError(f"{', '.join(block + part for part in parts)} have shapes {shapes}, not one")
                renamed[block + whole] = torch.cat(filled)
    return renamed


# ---- in: what an architecture's name tells, in the words of Eva's own arguments

DINOV3 = {"use_rot_pos_emb": True, "rope_type": "dinov3", "rope_temperature": 100.0, "norm_eps": 1e-5}
EVA02 = {"use_rot_pos_emb": True, "ref_feat_shape": (16, 16), "norm_eps": 1e-6}
PERCEPTION = {
    "use_rot_pos_emb": True,
    "ref_feat_shape": "published",  # the grid of the size in its name
    "rope_grid_indexing": "xy",
    "rope_grid_offset": 1.0,
    "attn_pool_num_heads": 8,
    "norm_eps": 1e-5,
}
ARCHITECTURES: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"_dinov3|_lingbot", DINOV3),
    (r"^eva02_", EVA02),
    (r"_rope_reg\d_gap_", EVA02),
    (r"^vit_pe_\w+_gigantic_", {**PERCEPTION, "rope_grid_offset": 0.0}),
    (r"^vit_pe_", PERCEPTION),
    (r"^eva_", {"norm_eps": 1e-6}),
)


def eva_arguments(timm_config: TimmConfig, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Eva's arguments of a model: its architecture's, its own; without a config.json, what the tensors show.

    Empty for a VisionTransformer. tensors: under plain names."""
    name = timm_config.architecture
    if not name:
        return dict(_shown(tensors))
    usual = next((arguments for pattern, arguments in ARCHITECTURES if re.search(pattern, name)), None)
    if usual is None:
        return {}
    arguments = {**usual, **timm_config.arguments}
    if arguments.get("ref_feat_shape") == "published":
        size = re.search(r"patch(\d+)_(\d+)", name)
        arguments["ref_feat_shape"] = (int(size[2]) // int(size[1]),) * 2 if size else None
    return arguments


def _shown(tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
    if "reg_token" in tensors and "pos_embed" not in tensors:
        return DINOV3
    if "norm_pre.weight" in tensors and ("attn_pool.latent" in tensors or "norm.weight" not in tensors):
        return {**PERCEPTION, "rope_grid_offset": 1.0 if "cls_token" in tensors else 0.0, "ref_feat_shape": "native"}
    up, down = tensors.get("blocks.0.mlp.fc1.weight"), tensors.get("blocks.0.mlp.fc2.weight")
    gated = up is not None and down is not None and up.dim() == down.dim() == 2 and len(up) == 2 * down.shape[1]
    return EVA02 if gated and "pos_embed" in tensors and "blocks.0.ls1.gamma" not in tensors else {}


def rotary_fields(arguments: Mapping[str, Any], positions: Mapping[str, Any], patch: tuple[int, int]) -> dict[str, Any]:
    """The fields of ViTConfig that Eva's arguments tell. positions: those that are known of the added positions."""
    if not arguments.get("use_rot_pos_emb"):
        return {}
    kind = arguments.get("rope_type", "cat")
    if kind not in ("cat", "dinov3"):
        raise VitrailError(f"its rope_type is {kind!r}, and only 'cat' and 'dinov3' are read")
    base = arguments.get("rope_temperature", 10000.0)
    start = arguments.get("rope_grid_offset", 0.0)
    if not isinstance(base, int | float) or not isinstance(start, int | float):
        raise VitrailError(f"its rope_temperature is {base!r} and its rope_grid_offset {start!r}, not two numbers")
    fields: dict[str, Any] = {"rotary_base": float(base)}
    if positions.get("positions") != "rotary":
        fields["rotary_too"] = True
    if kind == "dinov3":
        return fields
    grid = arguments.get("ref_feat_shape")
    if grid is None:
        raise VitrailError("its rope counts patches without ref_feat_shape, and only those scaled to a grid are read")
    if grid == "native":
        grid = tuple(side // length for side, length in zip(positions["image_size"], patch, strict=True))
    return {**fields, "rotary_grid": grid, "rotary_start": float(start)}


def halves(tensors: dict[str, Tensor], config: ViTConfig, arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors with the dims of queries and keys in our order."""
    half = arguments.get("rope_rotate_half", arguments.get("rope_type") == "dinov3")
    if not config.is_rotary or half:
        return tensors
    return from_neighbours(tensors, config.heads, arguments.get("rope_grid_indexing", "ij") == "xy")


# ---- out

ARCHITECTURE = {1e-5: "vit_small_patch16_dinov3", 1e-6: "eva02_tiny_patch14_224"}  # norm_eps is not said in JSON
SHARED_ARGUMENTS = (
    *("img_size", "patch_size", "in_chans", "num_classes", "global_pool", "embed_dim", "depth", "num_heads"),
    *("qkv_bias", "qk_norm", "init_values", "class_token", "no_embed_class"),
)


def writes_as_eva(config: ViTConfig) -> bool:
    """Whether it is timm's Eva that has this network, and not its VisionTransformer."""
    return config.is_rotary or config.mlp_norm or config.attention_norm


def eva_architecture(config: ViTConfig) -> str:
    """The architecture with this eps, all of whose arguments are overridden."""
    if config.norm_eps not in ARCHITECTURE:
        raise VitrailError(f"norm_eps {config.norm_eps} cannot be written for timm: with rotary positions it has 1e-05")
    return ARCHITECTURE[config.norm_eps]


def refuse_inexpressible(config: ViTConfig) -> None:
    """VitrailError for what timm's VisionTransformer may have and its Eva has not."""
    refused = {
        "activation": config.activation not in ("gelu", "swiglu"),
        "distillation": config.distillation,
        "patch_bias": config.patch_bias == config.stem_norm,
    }
    for name, wrong in refused.items():
        if wrong:
            value = getattr(config, name)
            raise VitrailError(
                f"{name} {value!r} cannot be written for timm: its network with rotary positions differs"
            )


def eva_state(state: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    """Tensors under VisionTransformer's names, under Eva's."""
    named = {re.sub(r"\.ls([12])\.gamma$", r".gamma_\1", name): tensor for name, tensor in state.items()}
    if config.activation == "swiglu" and config.mlp_norm:  # timm packs the two maps only where there is no norm
        for name in [name for name in named if ".mlp.fc1." in name]:
            gate, value = named.pop(name).chunk(2)
            named[name.replace("fc1", "fc1_g")], named[name.replace("fc1", "fc1_x")] = gate.clone(), value.clone()
    return named if config.rotary_grid is None else to_neighbours(named, config.heads)


def eva_arguments_of(config: ViTConfig, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Eva's arguments of a config, from those that VisionTransformer would have."""
    swiglu = config.activation == "swiglu"
    assert config.mlp_width is not None
    pooled = config.final_norm == "pooled"
    return {
        **{name: plain[name] for name in SHARED_ARGUMENTS},
        "attn_type": "rope",  # its keys may have a bias
        "qkv_fused": True,
        "mlp_ratio": exact_ratio(config.mlp_width, config.width),
        "swiglu_mlp": swiglu,
        "swiglu_align_to": 0,
        "scale_mlp": config.mlp_norm,
        "scale_attn_inner": config.attention_norm,
        "num_reg_tokens": config.registers,
        "use_abs_pos_emb": config.positions not in ("rotary", "none"),
        "use_rot_pos_emb": config.is_rotary,
        "rope_type": "dinov3" if config.rotary_grid is None else "cat",
        "rope_temperature": config.rotary_base,
        "rope_rotate_half": config.rotary_grid is None,
        "rope_grid_offset": config.rotary_start,
        "rope_grid_indexing": "ij",
        "ref_feat_shape": config.rotary_grid,
        "use_pre_transformer_norm": config.stem_norm,
        "use_post_transformer_norm": config.final_norm == "tokens",
        "use_fc_norm": pooled,
        "attn_pool_num_heads": config.pool_heads or config.heads,
        "attn_pool_mlp_ratio": exact_ratio(config.pool_mlp_width or config.mlp_width, config.width),
        "dynamic_img_size": True,
    }


def exact_ratio(up: int, width: int) -> float:
    """The mlp_ratio with which timm's int(width * ratio) is exact."""
    return up / width if int(width * (up / width)) == up else (up + 0.5) / width


def notes_on_writing(config: ViTConfig) -> list[str]:
    """What timm computes in another way."""
    if not config.rotary_bfloat16:
        return []
    return ["timm computes the periods of rotary positions in float32, this model has them rounded to bfloat16"]
