"""transformers' plain ViTs, in and out: ViT, DeiT, ViT-MAE's encoder, I-JEPA, DINOv2 with and without registers."""

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
from vitrail.weights.preprocessing import HALF, IMAGENET, Preprocessing
from vitrail.weights.source import Source

NAME = "transformers"

# ---- names of tensors

Modules = dict[str, str | tuple[str, ...]]

PREFIXES = (
    "vit.",
    "deit.",
    "dinov2.",
    "dinov2_with_registers.",
    "ijepa.",
)  # there when the model has a head or a decoder
PATCHES = "embeddings.patch_embeddings.projection"
CLS = "embeddings.cls_token"
POSITIONS = "embeddings.position_embeddings"
DISTILLATION = "embeddings.distillation_token"
REGISTERS = "embeddings.register_tokens"
MASK = "embeddings.mask_token"

TOKENS = {
    "cls_token": CLS,
    "distillation_token": DISTILLATION,
    "registers": REGISTERS,
    "positions.table": POSITIONS,
}
ENDS: Modules = {"stem.projection": PATCHES, "norm": "layernorm"}
ONE_HEAD: Modules = {"head.out": "classifier"}
TWO_HEADS: Modules = {"head.out": "cls_classifier", "distillation_head.out": "distillation_classifier"}

# Inside a block. transformers 5 renamed many in memory; what it saves still has the published names. Both are read.
LAYERS = ("encoder.layer.", "layers.")
ATTENTION: Modules = {
    "attention.qkv": ("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    "attention.out": "attention.output.dense",
}
ATTENTION_IN_MEMORY: Modules = {
    "attention.qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    "attention.out": "attention.o_proj",
}
VIT_NORMS: Modules = {"norm1": "layernorm_before", "norm2": "layernorm_after"}
DINOV2_NORMS: Modules = {"norm1": "norm1", "norm2": "norm2"}
VIT_MLP: Modules = {"mlp.up": "intermediate.dense", "mlp.down": "output.dense"}
DINOV2_MLP: Modules = {"mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}  # and ViT's in memory
SWIGLU: Modules = {"mlp.up": "mlp.weights_in", "mlp.down": "mlp.weights_out"}
SWIGLU_IN_MEMORY: Modules = {"mlp.up": ("mlp.gate_proj", "mlp.up_proj"), "mlp.down": "mlp.down_proj"}
SCALES = {"branch1.scale": "layer_scale1.lambda1", "branch2.scale": "layer_scale2.lambda1"}

IGNORED = {
    "pooler.": "the pooler was left out: a tanh layer of transformers on [CLS], which no published head reads",
    "decoder.": "the decoder was left out: only masked pre-training uses it",
    MASK: "",
}

# ---- config and preprocessing, by model_type

_SQUASHED = Preprocessing(resize="squash", interpolation="bilinear", mean=HALF[0], std=HALF[1])
_CROPPED = Preprocessing(crop_fraction=224 / 256, mean=IMAGENET[0], std=IMAGENET[1])
TYPES = {
    "vit": Usual(1e-12, "gelu", "bicubic", "ViT", _SQUASHED),
    "deit": Usual(1e-12, "gelu", "bicubic", "DeiT", _CROPPED),
    "vit_mae": Usual(1e-12, "gelu", "bicubic", "ViT", _CROPPED),
    "ijepa": Usual(1e-6, "gelu", "bicubic", "ViT", _CROPPED),
    "dinov2": Usual(1e-6, "gelu", "bicubic", "Bit", _CROPPED),
    "dinov2_with_registers": Usual(1e-6, "gelu", "bicubic_antialias", "Bit", _CROPPED),
}
MARKS = {  # the beginning of a name -> the type it gives away, where config.json does not say
    REGISTERS: "dinov2_with_registers",
    "encoder.layer.0.layer_scale1.": "dinov2",
    DISTILLATION: "deit",
    "decoder.decoder_": "vit_mae",
}


def recognises(source: Source) -> bool:
    """Whether there is a patch embedding under the name that transformers' ViTs share."""
    return any(name.endswith(f"{PATCHES}.weight") for name in source.tensors)


def convert(source: Source, settings: Mapping[str, Any]) -> Foreign:
    """transformers' tensors and JSON files as a config, tensors and preprocessing of ours."""
    tensors = _without_prefix(source.tensors)
    stored = without_nulls(source.config)
    kind = _kind(stored, tensors)
    notes = notes_on_unused(tensors, IGNORED)
    if DISTILLATION in tensors and "classifier.weight" in tensors:
        tensors = _distillation_as_register(tensors)
        notes.append("the distillation token has no head here, so it became a register, its position added to it")
    names = _names_in(tensors)
    shapes = _shapes(tensors, names)
    fields, heads_from = encoder_fields(stored, TYPES[kind], shapes, settings)
    if sum(shape_of(tensors, name, 2)[0] for name in names.theirs("blocks.0.mlp.up.weight")) == 2 * shapes.mlp_width:
        fields["activation"] = "swiglu"
    head = names.theirs("head.out.weight")[0]
    classes = shape_of(tensors, head, 2)[0] if head in tensors else 0
    config = ViTConfig(
        **fields,
        cls_token=CLS in tensors,
        distillation=DISTILLATION in tensors,
        registers=shape_of(tensors, REGISTERS, 3)[1] if REGISTERS in tensors else 0,
        qkv_bias=names.theirs("blocks.0.attention.qkv.bias")[0] in tensors,
        layer_scale=stored.get("layerscale_value", 1.0) if kind.startswith("dinov2") else None,
        pool="mean" if CLS not in tensors else "cls_mean" if kind.startswith("dinov2") and classes else "cls",
        classes=classes,
    )
    return Foreign(
        config=config,
        tensors=to_ours(tensors, names, config),
        preprocessing=read_preprocessing(source.preprocessor, TYPES[kind], config, notes),
        heads_from=heads_from,
        task=read_task(stored, classes),
        labels=read_labels(stored, classes),
        notes=notes,
    )


def _without_prefix(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    for prefix in PREFIXES:
        if any(name.startswith(prefix) for name in tensors):
            return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return dict(tensors)


def _kind(stored: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    if "model_type" in stored:
        return known_type(stored["model_type"], TYPES)
    return next((kind for mark, kind in MARKS.items() if any(name.startswith(mark) for name in tensors)), "vit")


def _distillation_as_register(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """DeiTForImageClassification runs with DeiT's second token but reads only [CLS]. So does a ViT with one register;
    registers have no position of their own, so that of the token is added to it once and for all."""
    token, positions = shape_of(tensors, DISTILLATION, 3), shape_of(tensors, POSITIONS, 3)
    if token != (1, 1, positions[2]) or positions[1] < 3:
        raise VitrailError(f"{DISTILLATION} has shape {token}, {POSITIONS} {positions}: they do not go together")
    cls, distillation, patches = tensors[POSITIONS].split([1, 1, positions[1] - 2], dim=1)
    folded = {name: tensor for name, tensor in tensors.items() if name != DISTILLATION}
    return {**folded, REGISTERS: tensors[DISTILLATION] + distillation, POSITIONS: torch.cat([cls, patches], dim=1)}


def _shapes(tensors: Mapping[str, Tensor], names: Names) -> Shapes:
    layer = names.theirs("blocks.0.norm1.weight")[0].split("0.")[0]
    specials = int(CLS in tensors) + int(DISTILLATION in tensors)
    return Shapes(
        patch=shape_of(tensors, f"{PATCHES}.weight", 4),
        depth=count_blocks(tensors, layer),
        mlp_width=shape_of(tensors, names.theirs("blocks.0.mlp.down.weight")[0], 2)[1],
        positions=shape_of(tensors, POSITIONS, 3)[1] - specials,
    )


def names_of(layer: str, blocks: Modules, head: Modules) -> Names:
    """The table of names whose blocks lie under `layer`, with these parts in a block and this head."""
    modules: Modules = {**ENDS, **head}
    for ours, theirs in blocks.items():
        several = (theirs,) if isinstance(theirs, str) else theirs
        modules[f"blocks.{{i}}.{ours}"] = tuple(f"{layer}{{i}}.{name}" for name in several)
    scales = {f"blocks.{{i}}.{ours}": f"{layer}{{i}}.{theirs}" for ours, theirs in SCALES.items()}
    return Names(modules, {**TOKENS, **scales}, tuple(IGNORED))


def _names_in(tensors: Mapping[str, Tensor]) -> Names:
    """The table of names that these tensors follow, put together from the parts whose names are there."""
    layer = next((layer for layer in LAYERS if any(name.startswith(layer) for name in tensors)), LAYERS[0])
    blocks: Modules = {}
    for choices in (
        (ATTENTION, ATTENTION_IN_MEMORY),
        (VIT_NORMS, DINOV2_NORMS),
        (VIT_MLP, DINOV2_MLP, SWIGLU, SWIGLU_IN_MEMORY),
    ):
        blocks |= next((part for part in choices if _holds(tensors, layer, part)), choices[0])
    return names_of(layer, blocks, TWO_HEADS if "cls_classifier.weight" in tensors else ONE_HEAD)


def _holds(tensors: Mapping[str, Tensor], layer: str, part: Modules) -> bool:
    first = next(iter(part.values()))
    return f"{layer}0.{first if isinstance(first, str) else first[0]}.weight" in tensors


# ---- back out

CLASSES = {  # the model without a head, and with one
    "vit": ("ViTModel", "ViTForImageClassification"),
    "deit": ("DeiTModel", "DeiTForImageClassificationWithTeacher"),
    "ijepa": ("IJepaModel", "IJepaForImageClassification"),
    "dinov2": ("Dinov2Model", "Dinov2ForImageClassification"),
    "dinov2_with_registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersForImageClassification"),
}
WRITABLE: dict[str, tuple[tuple[Any, ...], str]] = {  # a field -> the values transformers has, and what it has
    "stem": (("linear",), "its patches go through one linear map"),
    "positions": (("learned", "sincos1d", "sincos2d", "none"), "its models add their positions"),
    "stem_norm": ((False,), "only its CLIP has a norm before the blocks"),
    "norm": (("pre",), "its blocks are pre-norm"),
    "attention_window": ((0,), "its attention is full"),
    "qk_norm": ((False,), "its attention does not norm queries and keys"),
    "mlp_norm": ((False,), "its MLP has no norm"),
    "attention_norm": ((False,), "its attention has no norm inside"),
    "final_norm": (("tokens",), "its final norm comes before pooling"),
    "head": (("linear",), "its head is one linear layer"),
    "pool": (("cls", "mean", "cls_mean"), "its heads read [CLS], the mean of the patches, or both"),
}
WRITABLE_BY_KIND: dict[str, dict[str, tuple[tuple[Any, ...], str]]] = {
    "deit": {
        "registers": ((0,), "its DeiT, the one with distillation, has none"),
        "layer_scale": ((None,), "its DeiT, the one with distillation, has none"),
        "activation": (("gelu", "gelu_tanh", "quick_gelu"), "its DeiT, the one with distillation, has a plain MLP"),
    },
    "ijepa": {
        "pool": (("mean",), "its I-JEPA, the one without [CLS], reads the mean of the patches"),
        "registers": ((0,), "its I-JEPA, the one without [CLS], has none"),
        "layer_scale": ((None,), "its I-JEPA, the one without [CLS], has none"),
        "activation": (("gelu", "gelu_tanh", "quick_gelu"), "its I-JEPA, the one without [CLS], has a plain MLP"),
    },
}


def write_folder(checkpoint: Checkpoint, folder: str | Path) -> None:
    """Write what `AutoModelForImageClassification.from_pretrained(folder)` loads, or `AutoModel` when there is no head.

    What transformers cannot do alike is added to the checkpoint's notes.
    """
    checkpoint.check()
    kind = _kind_of(checkpoint.vit.config)
    _check_writable(checkpoint, kind)
    notes: list[str] = _notes_on_positions(checkpoint.vit.config, kind)
    write_model(folder, checkpoint, _tensors_to_write(checkpoint, kind), _config_json(checkpoint, kind), notes)


def _kind_of(config: ViTConfig) -> str:
    """The simplest model of transformers that can be this one."""
    if not config.cls_token:
        return "ijepa"
    if config.distillation:
        return "deit"
    if config.registers:
        return "dinov2_with_registers"
    # A mean of patches is read by DINOv2's head only. Its layer scale is all ones where we have none.
    reads_patches = config.classes > 0 and config.pool != "cls"
    return "dinov2" if config.layer_scale is not None or config.activation == "swiglu" or reads_patches else "vit"


def _check_writable(checkpoint: Checkpoint, kind: str) -> None:
    config = checkpoint.vit.config
    if config.is_dense:
        raise VitrailError(
            f"task {checkpoint.task!r} cannot be written for transformers: only classifiers and encoders can"
        )
    for field, (values, why) in {**WRITABLE, **WRITABLE_BY_KIND.get(kind, {})}.items():
        value = getattr(config, field)
        same = field == "final_norm" and value == "pooled" and config.pool == "cls"  # one token: before is after
        if value not in values and not same:
            raise VitrailError(f"{field} {value!r} cannot be written for transformers: {why}")

    if not config.classes and config.pool != "cls" and kind != "ijepa":
        raise VitrailError(
            f"pool {config.pool!r} cannot be written for transformers: a model without a head gives its [CLS] there"
        )
    if kind.startswith("dinov2") and _mlp_ratio(config) is None:
        raise VitrailError(
            f"mlp_width {config.mlp_width} cannot be written for transformers: its DINOv2, the one with layer scale, "
            f"registers or swiglu, takes a whole multiple of width {config.width} (swiglu: two thirds of one)"
        )


def _mlp_ratio(config: ViTConfig) -> int | None:
    """The whole number from which DINOv2 gets our MLP's width, if there is one."""
    for ratio in range(1, 65):
        hidden = config.width * ratio
        if config.activation == "swiglu":
            hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
        if hidden == config.mlp_width:
            return ratio
    return None


def _notes_on_positions(config: ViTConfig, kind: str) -> list[str]:
    if not config.classes and kind == "ijepa":
        return ["without a head transformers' I-JEPA gives its tokens: their mean is this model's answer"]
    if config.positions.startswith("sincos"):
        return [f"positions {config.positions!r} were written as a table for {config.image_size}"]
    rule = TYPES[kind].resample
    if config.positions == "learned" and config.resample != rule:
        return [
            f"at another image size transformers resamples positions by {rule!r}, this model by {config.resample!r}"
        ]
    return []


def _config_json(checkpoint: Checkpoint, kind: str) -> dict[str, Any]:
    config = checkpoint.vit.config
    values: dict[str, Any] = {
        **vit_json(checkpoint, kind, CLASSES[kind][config.classes > 0]),
        "hidden_act": HIDDEN_ACT.get(config.activation, "gelu"),
        "qkv_bias": config.qkv_bias,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        **head_json(config.classes, checkpoint.labels, checkpoint.task),
    }
    if not kind.startswith("dinov2"):
        return {**values, "intermediate_size": config.mlp_width, "pooler_act": "linear"}
    values |= {"mlp_ratio": _mlp_ratio(config), "use_swiglu_ffn": config.activation == "swiglu"}
    values |= {"layerscale_value": 1.0 if config.layer_scale is None else config.layer_scale}
    values |= {"drop_path_rate": config.drop_path}
    return {**values, "num_register_tokens": config.registers} if config.registers else values


def _tensors_to_write(checkpoint: Checkpoint, kind: str) -> dict[str, Tensor]:
    config = checkpoint.vit.config
    state = _filled_state(checkpoint, kind)
    blocks = {**ATTENTION, **VIT_NORMS, **VIT_MLP}
    if kind.startswith("dinov2"):
        blocks = {**ATTENTION, **DINOV2_NORMS, **(SWIGLU if config.activation == "swiglu" else DINOV2_MLP)}
    theirs = to_theirs(state, names_of(LAYERS[0], blocks, TWO_HEADS if config.distillation else ONE_HEAD), config)
    if kind.startswith("dinov2"):
        theirs[MASK] = state["norm.weight"].new_zeros(1, config.width)
    elif not config.classes and kind != "ijepa":  # with pooler_act "linear", the pooler gives [CLS] as it is
        theirs["pooler.dense.weight"] = torch.eye(config.width, dtype=state["norm.weight"].dtype)
        theirs["pooler.dense.bias"] = state["norm.weight"].new_zeros(config.width)
    if not config.classes:
        return theirs
    return {name if "classifier." in name else f"{kind}.{name}": tensor for name, tensor in theirs.items()}


@torch.no_grad()
def _filled_state(checkpoint: Checkpoint, kind: str) -> dict[str, Tensor]:
    """Our tensors, and those that transformers always has: positions as a table, biases, layer scale."""
    config, model = checkpoint.vit.config, checkpoint.vit
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    like = state["norm.weight"]
    table = like.new_zeros(config.tokens, config.width)
    if (positions := model.position_table()) is not None:
        table = positions.to(like)
    specials = config.prefix - config.registers
    state["positions.table"] = torch.cat([table[:specials], table[config.prefix :]])  # registers have none
    state.setdefault("stem.projection.bias", like.new_zeros(config.width))
    for head in ("head.out", "distillation_head.out"):
        if f"{head}.weight" in state:
            state.setdefault(f"{head}.bias", like.new_zeros(config.classes))
    if kind.startswith("dinov2"):
        for block in range(config.depth):
            for name in SCALES:
                state.setdefault(f"blocks.{block}.{name}", like.new_ones(config.width))
        if config.classes and config.pool != "cls_mean":  # DINOv2's head reads [CLS] and the mean: zeros for the other
            weight = state["head.out.weight"]
            both = [weight, torch.zeros_like(weight)]
            state["head.out.weight"] = torch.cat(both if config.pool == "cls" else both[::-1], dim=1)
    return state
