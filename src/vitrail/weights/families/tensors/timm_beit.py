"""timm's Beit class, out: its names and arguments, from those of its VisionTransformer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.weights.families.tensors.relative_positions import without_key_bias

BEIT = "beitv2_base_patch16_224"  # the architecture all of whose arguments are overridden; its eps is 1e-6
SHARED_ARGUMENTS = (
    *("img_size", "patch_size", "in_chans", "num_classes", "global_pool", "embed_dim", "depth", "num_heads"),
    *("qkv_bias", "mlp_ratio", "init_values"),
)


def refuse_other_than_beit(config: ViTConfig) -> None:
    """VitrailError for what timm's Beit has not."""
    norm = "pooled" if config.pool == "mean" else "tokens"
    refused = {
        "norm_eps": config.norm_eps != 1e-6,
        "cls_token": not config.cls_token,
        "cls_position": config.positions == "learned" and config.cls_position != "learned",
        "distillation": config.distillation,
        "registers": bool(config.registers),
        "positions": config.positions not in ("learned", "none"),
        "is_rotary": config.is_rotary,
        "qk_norm": config.qk_norm,
        "mlp_norm": config.mlp_norm,
        "attention_norm": config.attention_norm,
        "stem_norm": config.stem_norm,
        "patch_bias": not config.patch_bias,
        "activation": config.activation != "gelu",
        "pool": config.pool not in ("mean", "cls"),
        "final_norm": config.final_norm != norm,
    }
    for name, wrong in refused.items():
        if wrong:
            value = getattr(config, name)
            raise VitrailError(f"{name} {value!r} cannot be written for timm: its network with relative bias differs")


def beit_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under VisionTransformer's names, under Beit's."""
    named = {re.sub(r"\.ls([12])\.gamma$", r".gamma_\1", name): tensor for name, tensor in state.items()}
    for name in [name for name in named if name.endswith(".attn.qkv.bias")]:
        q, v = without_key_bias(named.pop(name))
        named[name.replace("qkv.bias", "q_bias")], named[name.replace("qkv.bias", "v_bias")] = q, v
    for name in named:
        if name.endswith("relative_position_bias_table"):
            named[name] = named[name].flatten(0, -2)
    return named


def beit_arguments(config: ViTConfig, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Beit's arguments of a config, from those that VisionTransformer would have."""
    return {
        **{name: plain[name] for name in SHARED_ARGUMENTS},
        "use_abs_pos_emb": config.positions == "learned",
        "use_rel_pos_bias": True,
    }
