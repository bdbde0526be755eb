"""timm's Vision Transformers, in and out: ViT, DeiT (distilled too), registers, DINOv2, CLIP and SigLIP towers.

Those of its other class, Eva (DINOv3, EVA-02, Perception Encoder), are brought to these names in tensors/timm_eva.py.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.files import replacing
from vitrail.model.config import ViTConfig
from vitrail.tasks.registry import task_of_outputs
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.families.tensors.relative_positions import in_every_block, native_size_of_steps
from vitrail.weights.families.tensors.timm_beit import BEIT, beit_arguments, beit_state, refuse_other_than_beit
from vitrail.weights.families.tensors.timm_eva import (
    eva_architecture,
    eva_arguments,
    eva_arguments_of,
    eva_state,
    exact_ratio,
    halves,
    notes_on_writing,
    plain_names,
    refuse_inexpressible,
    rotary_fields,
    writes_as_eva,
)
from vitrail.weights.families.timm_json import CROP_MODES, POOLS, TimmConfig, read_preprocessing, read_timm_config
from vitrail.weights.family import Foreign, count_blocks, count_heads, native_layout, shape_of
from vitrail.weights.naming import Names, to_ours, to_theirs
from vitrail.weights.preprocessing import Preprocessing, notes_on_offset
from vitrail.weights.source import Source

NAME = "timm"

# ---- names of tensors

MODULES = {
    "stem.projection": "patch_embed.proj",
    "stem_norm": "norm_pre",
    "blocks.{i}.norm1": "blocks.{i}.norm1",
    "blocks.{i}.attention.qkv": "blocks.{i}.attn.qkv",
    "blocks.{i}.attention.q_norm": "blocks.{i}.attn.q_norm",
    "blocks.{i}.attention.k_norm": "blocks.{i}.attn.k_norm",
    "blocks.{i}.attention.norm": "blocks.{i}.attn.norm",
    "blocks.{i}.attention.out": "blocks.{i}.attn.proj",
    "blocks.{i}.norm2": "blocks.{i}.norm2",
    "blocks.{i}.mlp.up": "blocks.{i}.mlp.fc1",  # SwiGLU too: packed as ours, the gate first
    "blocks.{i}.mlp.norm": "blocks.{i}.mlp.norm",
    "blocks.{i}.mlp.down": "blocks.{i}.mlp.fc2",
    "pool.attention.q": "attn_pool.q",
    "pool.attention.kv": "attn_pool.kv",
    "pool.attention.out": "attn_pool.proj",
    "pool.attention.norm": "attn_pool.norm",
    "pool.attention.mlp.up": "attn_pool.mlp.fc1",
    "pool.attention.mlp.down": "attn_pool.mlp.fc2",
    "head.out": "head",
    "distillation_head.out": "head_dist",
}
RELATIVE = "blocks.{i}.attn.relative_position_bias_table"  # BEiT
SHARED_RELATIVE = "rel_pos_bias.relative_position_bias_table"
TENSORS = {
    "cls_token": "cls_token",
    "distillation_token": "dist_token",
    "registers": "reg_token",
    "positions.table": "pos_embed",
    "blocks.{i}.attention.relative_bias.table": RELATIVE,
    "blocks.{i}.branch1.scale": "blocks.{i}.ls1.gamma",
    "blocks.{i}.branch2.scale": "blocks.{i}.ls2.gamma",
    "pool.attention.query": "attn_pool.latent",
}


def names(config: ViTConfig) -> Names:
    """Our names and timm's. timm calls the final norm `fc_norm` when it comes after pooling."""
    return Names(modules={**MODULES, "norm": "fc_norm" if config.final_norm == "pooled" else "norm"}, tensors=TENSORS)


def has_names(tensors: Mapping[str, Tensor]) -> bool:
    """Whether tensors have the names of timm's VisionTransformer or Eva."""
    attention = ("blocks.0.attn.qkv.weight", "blocks.0.attn.q_proj.weight")
    return "patch_embed.proj.weight" in tensors and any(name in tensors for name in attention)


def recognises(source: Source) -> bool:
    """Whether the tensors have timm's names."""
    return has_names(source.tensors)


# ---- in

CLIP_PROJECTIONS = (512, 640, 768, 1024, 1280)
DINOV3_HEADS = {1280: 20, 4096: 32}  # other than the published ViTs of that width


def convert(source: Source, settings: Mapping[str, Any]) -> Foreign:
    """timm's tensors and config.json as a config, tensors and preprocessing of ours."""
    timm_config = read_timm_config(source)
    tensors, config, heads_from = network(source.tensors, settings, timm_config)
    preprocessing, changed = read_preprocessing(timm_config, config, source.file)
    notes = [*_assumed(timm_config, config, settings), *changed, *_notes_on_pool(timm_config, config)]
    labels = timm_config.labels(config.classes)
    of_clip = config.stem_norm or config.attention_norm
    projection = of_clip and config.classes in CLIP_PROJECTIONS and not labels
    if projection:
        notes.append(f"its head of {config.classes} outputs is taken for CLIP's projection, not for a classifier")
    if config.distillation and not config.classes:
        notes.append("without heads, the answer is [CLS]; timm gives the mean of [CLS] and the distillation token")
    return Foreign(
        config=config,
        tensors=to_ours(tensors, names(config), config),
        preprocessing=preprocessing,
        heads_from=heads_from,
        task=task_of_outputs(0 if projection else config.classes),
        labels=labels,
        notes=notes,
    )


def _assumed(timm_config: TimmConfig, config: ViTConfig, settings: Mapping[str, Any]) -> list[str]:
    if timm_config.architecture:
        notes = timm_config.pretrained.get("notes")  # such as "natively QuickGELU, use quickgelu model variant ..."
        return [f"timm notes: {note}" for note in notes] if isinstance(notes, list) else []
    assumed = [f"{name} {getattr(config, name)}" for name in ("activation", "norm_eps", "pool") if name not in settings]
    return [f"no config.json of timm's lies beside it, so these were assumed: {', '.join(assumed)}"] if assumed else []


def _notes_on_pool(timm_config: TimmConfig, config: ViTConfig) -> list[str]:
    if timm_config.global_pool != "avg" or config.pool != "cls":
        return []
    return ["pooled by [CLS], as its publisher and transformers do; timm averages the patches, which is pool='mean'"]


def network(
    tensors: Mapping[str, Tensor], settings: Mapping[str, Any], timm_config: TimmConfig, **known: Any
) -> tuple[dict[str, Tensor], ViTConfig, str]:
    """The tensors with positions as ours, the config, and how the number of heads is known. `known`: fields of it."""
    timm_config.refuse_other_networks()
    tensors = plain_names(tensors)
    tensors = in_every_block(tensors, SHARED_RELATIVE, RELATIVE, count_blocks(tensors, "blocks."))
    arguments = eva_arguments(timm_config, tensors)
    fields = _fields_shown(tensors)
    heads, heads_from = _heads(tensors, fields, settings, timm_config)
    tensors, positions = _positions(tensors, fields, settings, timm_config, bool(arguments.get("use_rot_pos_emb")))
    fields |= {**positions, **rotary_fields(arguments, positions, fields["patch_size"]), "heads": heads}
    fields["norm_eps"] = arguments.get("norm_eps") or timm_config.norm_eps(fields["stem_norm"])
    fields["pool"] = _pool(timm_config, fields)
    if fields["pool"] == "attention" and arguments.get("attn_pool_num_heads") not in (None, heads):
        fields["pool_heads"] = arguments["attn_pool_num_heads"]
    if fields["pool"] == "attention":
        pool_mlp_width, _ = shape_of(tensors, "attn_pool.mlp.fc1.weight", 2)
        fields["pool_mlp_width"] = None if pool_mlp_width == fields["mlp_width"] else pool_mlp_width
    if fields["activation"] != "swiglu":
        fields["activation"] = timm_config.activation
    config = ViTConfig(**{**fields, **known})
    _refuse_prefix_in_pool(config, timm_config, bool(arguments))
    return halves(tensors, config, arguments), config, heads_from


def _pool(timm_config: TimmConfig, fields: Mapping[str, Any]) -> str:
    """As timm pools, but for DINOv3 without a head: timm takes the mean there, Meta and transformers take [CLS]."""
    as_timm = timm_config.pool(fields["pool"])
    left_open = "dinov3" in timm_config.architecture and "global_pool" not in timm_config.arguments
    return "cls" if left_open and fields["cls_token"] and not fields["classes"] else as_timm


def _fields_shown(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The fields that names and shapes show."""
    width, channels, down, across = shape_of(tensors, "patch_embed.proj.weight", 4)
    up, _ = shape_of(tensors, "blocks.0.mlp.fc1.weight", 2)
    _, mlp_width = shape_of(tensors, "blocks.0.mlp.fc2.weight", 2)
    if "blocks.0.norm1.bias" not in tensors:
        raise VitrailError("its norms have no bias, as RMSNorm, and only plain ViTs, with LayerNorm, are read")
    cls = "cls_token" in tensors
    pooled = "fc_norm.weight" in tensors
    relative = RELATIVE.replace("{i}", "0") in tensors
    return {
        "patch_size": (down, across),
        "channels": channels,
        "patch_bias": "patch_embed.proj.bias" in tensors,
        "cls_token": cls,
        "distillation": "dist_token" in tensors,
        "registers": shape_of(tensors, "reg_token", 3)[1] if "reg_token" in tensors else 0,
        "resample": "bilinear" if relative else "bicubic_antialias",
        "relative_bias": relative,
        "stem_norm": "norm_pre.weight" in tensors,
        "width": width,
        "depth": count_blocks(tensors, "blocks."),
        "mlp_width": mlp_width,
        "mlp_norm": "blocks.0.mlp.norm.weight" in tensors,
        "activation": "swiglu" if up == 2 * mlp_width else "gelu",
        "qkv_bias": "blocks.0.attn.qkv.bias" in tensors,
        "qk_norm": "blocks.0.attn.q_norm.weight" in tensors,
        "attention_norm": "blocks.0.attn.norm.weight" in tensors,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in tensors else None,
        "pool": "attention" if "attn_pool.latent" in tensors else "cls" if cls and not pooled else "mean",
        "final_norm": "pooled" if pooled else "tokens" if "norm.weight" in tensors else "none",
        "classes": shape_of(tensors, "head.weight", 2)[0] if "head.weight" in tensors else 0,
        "head_bias": "head.bias" in tensors or "head.weight" not in tensors,
    }


def _heads(
    tensors: Mapping[str, Tensor], fields: Mapping[str, Any], settings: Mapping[str, Any], timm_config: TimmConfig
) -> tuple[int, str]:
    width = fields["width"]
    heads, where = timm_config.heads
    if fields["qk_norm"]:
        (head_dim,) = shape_of(tensors, "blocks.0.attn.q_norm.weight", 1)
        heads, where = width // head_dim, "the width of the norm of the queries"
    elif heads is None and "pos_embed" not in tensors and width in DINOV3_HEADS:
        heads, where = DINOV3_HEADS[width], f"the published DINOv3 of width {width}; the file does not say"
    elif heads is None and width == 1536 and fields["activation"] != "swiglu":  # DINOv2's g has 24
        heads, where = 16, "the published SigLIP 2 of width 1536; the file does not say"
    return count_heads(width, settings, heads, where)


def _positions(
    tensors: Mapping[str, Tensor],
    fields: Mapping[str, Any],
    settings: Mapping[str, Any],
    timm_config: TimmConfig,
    rotary: bool = False,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors with a position table as ours has it, and what it shows.

    timm's registers may have positions, ours do not: their sum is what the network sees, so it becomes the register.
    """
    if "pos_embed" not in tensors:
        return dict(tensors), _no_positions(tensors, fields, settings, timm_config, rotary)
    rows = shape_of(tensors, "pos_embed", 3)[1]
    specials, registers = int(fields["cls_token"]) + int(fields["distillation"]), fields["registers"]
    # positions for [CLS] but not for registers, if any; for patches only, as in DeiT III; for registers too
    possible = list(dict.fromkeys((specials, 0, specials + registers)))
    prefix, image_size = native_layout(rows, possible, fields["patch_size"], settings, timm_config.image_size)
    tensors = dict(tensors)
    if registers and prefix == specials + registers:
        table = tensors["pos_embed"]
        if table.shape[2] != tensors["reg_token"].shape[2]:
            raise VitrailError(f"pos_embed is {table.shape[2]} wide, reg_token {tensors['reg_token'].shape[2]}")
        tensors["reg_token"] = tensors["reg_token"] + table[:, specials:prefix]
        tensors["pos_embed"] = torch.cat([table[:, :specials], table[:, prefix:]], dim=1)
    with_position = bool(specials and prefix)
    return tensors, {"image_size": image_size, "cls_position": "learned" if with_position else "none"}


def _no_positions(
    tensors: Mapping[str, Tensor],
    fields: Mapping[str, Any],
    settings: Mapping[str, Any],
    timm_config: TimmConfig,
    rotary: bool,
) -> dict[str, Any]:
    patch_size = fields["patch_size"]
    if fields["relative_bias"]:
        size = native_size_of_steps(tensors, RELATIVE, patch_size, settings, timm_config.image_size)
        return {"image_size": size, "positions": "none"}
    if not rotary and timm_config.arguments.get("pos_embed") not in ("", "none"):
        raise VitrailError("it has no pos_embed, so its positions come from elsewhere, and only plain ViTs are read")
    height, width = timm_config.image_size or ((256, 256) if rotary else (224, 224))
    whole = max(height // patch_size[0], 1) * patch_size[0], max(width // patch_size[1], 1) * patch_size[1]
    return {"image_size": whole, "positions": "rotary" if rotary else "none"}


def _refuse_prefix_in_pool(config: ViTConfig, timm_config: TimmConfig, eva: bool) -> None:
    """Our attention pool sees every token, our mean only the patches; so does Eva's, and ViT has a switch."""
    included = bool(timm_config.arguments.get("pool_include_prefix", timm_config.architecture == "test_vit3"))
    ours = config.pool == "attention"
    if not eva and config.prefix and config.pool != "cls" and included != ours:
        raise VitrailError(f"pool_include_prefix {included} with pool {config.pool!r} is not how ours pools its tokens")


# ---- out

# Architectures whose code has what JSON cannot say; all that JSON can say of them, model_args override.
PLAIN = "vit_base_patch16_224"
CLIP_EPS = "vit_base_patch16_clip_224"
SWIGLU = "vit_giant_patch14_dinov2"
DISTILLED = "deit_base_distilled_patch16_224"


def write_folder(checkpoint: Checkpoint, folder: str | Path) -> None:
    """A folder that `timm.create_model("local-dir:<folder>", pretrained=True)` loads.

    What timm cannot do alike is added to the checkpoint's notes.
    """
    checkpoint.check()
    refuse_dense(checkpoint)
    folder = Path(folder)
    state, arguments = timm_state(checkpoint)
    config = checkpoint.vit.config
    classifier = ["head", "head_dist"] if config.distillation else "head"
    stored = config_json(checkpoint, architecture(config), arguments, classifier)
    with replacing(folder / "model.safetensors") as temporary:
        save_file(state, temporary, {"format": "pt"})
    with replacing(folder / "config.json") as temporary:
        temporary.write_text(json.dumps(stored, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    checkpoint.notes.extend([*_notes_on_positions(config), *notes_on_writing(config)])
    checkpoint.notes.extend(notes_on_offset(checkpoint.preprocessing, "timm", "round"))


def refuse_dense(checkpoint: Checkpoint) -> None:
    """VitrailError for a model that answers about places."""
    if checkpoint.config.is_dense:
        raise VitrailError(f"task {checkpoint.task!r} cannot be written for timm: only classifiers and encoders can")


def config_json(
    checkpoint: Checkpoint, name: str, arguments: Mapping[str, Any], classifier: str | list[str]
) -> dict[str, Any]:
    """config.json of an architecture of timm with these arguments. classifier: the names of its heads."""
    preprocessing, config = checkpoint.preprocessing, checkpoint.config
    stored: dict[str, Any] = {
        "architecture": name,
        "num_classes": config.classes,
        "num_features": config.levels[-1].width,
        "global_pool": arguments["global_pool"],
        "model_args": {name: value for name, value in arguments.items() if name != "norm_layer"},  # the architecture's
        "pretrained_cfg": {
            "input_size": [config.channels, *preprocessing.size],
            "fixed_input_size": True,
            "interpolation": preprocessing.interpolation,
            "crop_pct": _crop_pct(preprocessing),
            "crop_mode": _theirs(CROP_MODES, preprocessing.resize),
            "mean": list(preprocessing.mean),
            "std": list(preprocessing.std),
            "num_classes": config.classes,
            # no first_conv: timm would take the patch weights for those of 3 channels
            "classifier": classifier,
        },
    }
    if checkpoint.labels:
        stored["label_names"] = checkpoint.labels
    return stored


def _crop_pct(preprocessing: Preprocessing) -> float:
    """The share with which timm's floor(size / crop_pct) is our size before the crop."""
    if preprocessing.resize == "pad":
        return 1.0
    fraction, side = preprocessing.crop_fraction, preprocessing.size[0]
    exact = math.floor(side / fraction) == preprocessing.before_crop[0]  # 224 / (224 / 354) is 353.99999999999994
    return fraction if exact else fraction * (1 - 1e-9)


def _notes_on_positions(config: ViTConfig) -> list[str]:
    if config.positions.startswith("sincos"):
        return [f"positions {config.positions!r} were written as a table for {config.image_size}"]
    if config.positions == "learned" and config.resample != "bicubic_antialias":
        return [f"at another size than {config.image_size} timm resamples positions by bicubic_antialias"]
    return []


def architecture(config: ViTConfig) -> str:
    """The timm architecture whose code has what model_args in JSON cannot say: eps, SwiGLU, distillation, RoPE."""
    if config.relative_bias:
        return BEIT
    if writes_as_eva(config):
        return eva_architecture(config)
    special = DISTILLED if config.distillation else SWIGLU if config.activation == "swiglu" else None
    if config.norm_eps == 1e-5 and special is None:
        return CLIP_EPS
    if config.norm_eps != 1e-6:
        raise VitrailError(f"norm_eps {config.norm_eps} cannot be written for timm: in a folder it has 1e-06")
    return special or PLAIN


def timm_state(checkpoint: Checkpoint) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights under timm's names, and arguments: `timm.models.VisionTransformer(**arguments).load_state_dict(state)`.

    With distillation it is `VisionTransformerDistilled`; SwiGLU also wants `mlp_layer=timm.layers.SwiGLUPacked`. With
    rotary positions it is `Eva`, whose norm_layer has our eps.
    """
    config = checkpoint.vit.config
    _refuse_inexpressible(config)
    state = to_theirs(checkpoint.model.state_dict(), names(config), config)
    no_embed_class = _write_positions(state, checkpoint)
    if config.classes and not config.head_bias:
        for head in ("head", "head_dist") if config.distillation else ("head",):
            state[f"{head}.bias"] = torch.zeros(config.classes)
    if not config.patch_bias and not config.stem_norm:
        state["patch_embed.proj.bias"] = torch.zeros(config.width)
    state = {name: tensor.detach().cpu() for name, tensor in state.items()}
    arguments = _arguments(config, no_embed_class)
    if config.relative_bias:
        return beit_state(state), beit_arguments(config, arguments)
    if writes_as_eva(config):
        return eva_state(state, config), eva_arguments_of(config, arguments)
    return state, arguments


def _refuse_inexpressible(config: ViTConfig) -> None:
    distilled = config.distillation
    if config.relative_bias:
        refuse_other_than_beit(config)
    if writes_as_eva(config):
        refuse_inexpressible(config)
    mlp_pools = config.pool == "attention" and config.activation == "swiglu"
    writable = {  # a field -> whether timm has its value, and what timm has
        "stem": (config.stem == "linear", "its patches go through one linear map"),
        "patch_bias": (not (config.patch_bias and config.stem_norm), "with a norm before the blocks it has none"),
        "pool_heads": (config.pool_heads is None or writes_as_eva(config), "its attention pool has the encoder's"),
        "pool_mlp_width": (
            config.pool_mlp_width is None or writes_as_eva(config),
            "its attention pool has the encoder's",
        ),
        "norm": (config.norm == "pre", "its blocks are pre-norm"),
        "attention_window": (not config.attention_window, "its attention is full"),
        "activation": (not mlp_pools, "its attention pool has a plain MLP"),
        "pool": (config.pool in POOLS.values(), "it pools by [CLS], mean or attention"),
        "head": (config.head == "linear" or not config.classes, "its head is one linear layer"),
        "registers": (not (distilled and config.registers), "its distilled ViT has none"),
        "final_norm": (not distilled or config.final_norm == "tokens", "its distilled ViT has one over tokens"),
        "classes": (bool(config.classes) or not distilled, "its distilled ViT without heads gives another answer"),
    }
    for name, (fits, why) in writable.items():
        if not fits:
            raise VitrailError(f"{name} {getattr(config, name)!r} cannot be written for timm: {why}")


def _write_positions(state: dict[str, Tensor], checkpoint: Checkpoint) -> bool:
    """Put timm's position table into the state; whether it is one of patches only.

    timm gives positions to all prefix tokens or to none. With registers the position of [CLS] is added to the token, as
    timm itself does for DINOv2. Sinusoids are written out as a table.
    """
    config = checkpoint.vit.config
    with torch.no_grad():
        positions = checkpoint.vit.position_table()
    if positions is None:
        return False
    table = positions.unsqueeze(0)  # (1, prefix + N, D)
    for_all = config.distillation or (config.cls_token and not config.registers and config.cls_position != "none")
    if not for_all and config.cls_token:
        state["cls_token"] = state["cls_token"] + table[:, :1]
    state["pos_embed"] = (table if for_all else table[:, config.prefix :]).clone()
    return not for_all


def _arguments(config: ViTConfig, no_embed_class: bool) -> dict[str, Any]:
    assert config.mlp_width is not None
    swiglu = config.activation == "swiglu"
    arguments: dict[str, Any] = {
        "img_size": list(config.image_size),
        "patch_size": list(config.patch_size),
        "in_chans": config.channels,
        "num_classes": config.classes,
        "global_pool": _theirs(POOLS, config.pool),
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": exact_ratio(2 * config.mlp_width if swiglu else config.mlp_width, config.width),
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
        "init_values": None if config.layer_scale is None else config.layer_scale or 1e-5,  # timm takes 0 for none
        "class_token": config.cls_token,
        "pos_embed": "none" if config.positions == "none" else "learn",
        "no_embed_class": no_embed_class,
        "reg_tokens": config.registers,
        "pre_norm": config.stem_norm,
        "final_norm": config.final_norm != "none",
        "fc_norm": config.final_norm == "pooled",
        "pool_include_prefix": config.pool == "attention",
        "act_layer": "silu" if swiglu else config.activation,
    }
    if config.norm_eps != 1e-6:
        arguments["norm_layer"] = functools.partial(nn.LayerNorm, eps=config.norm_eps)
    return arguments


def _theirs(table: Mapping[str, str], ours: str) -> str:
    return next(theirs for theirs, value in table.items() if value == ours)
