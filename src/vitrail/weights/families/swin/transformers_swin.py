"""transformers' Swin and Swin v2, in and out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model.swin.swin_config import SwinConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.families.swin.swin_tensors import (
    TABLE,
    Modules,
    count_stages,
    fit_tables,
    read_pretrained_windows,
    read_stages,
    stage_names,
    table_side,
    without_buffers,
)
from vitrail.weights.families.transformers_folder import (
    HIDDEN_ACT,
    encoder_json,
    head_json,
    write_model,
)
from vitrail.weights.families.transformers_json import (
    Usual,
    hidden_act,
    pair_of,
    read_labels,
    read_preprocessing,
    read_task,
    without_nulls,
)
from vitrail.weights.family import Foreign, notes_on_unused, shape_of
from vitrail.weights.naming import Names, to_ours, to_theirs
from vitrail.weights.preprocessing import IMAGENET, Preprocessing
from vitrail.weights.source import Source

NAME = "transformers-swin"

# ---- names of tensors

PREFIXES = ("swin.", "swinv2.")  # there when the model has a head or a decoder
STAGES = "encoder.layers."
PLACES = ("encoder.layers.{stage}.blocks.{i}", "encoder.layers.{before}.downsample")
ENDS = {
    "stem.projection": "embeddings.patch_embeddings.projection",
    "stem_norm": "embeddings.norm",
    "norm": "layernorm",
    "head.out": "classifier",
}
NORMS = {"norm1": "layernorm_before", "norm2": "layernorm_after"}
# transformers 5 renamed those of v1 in memory; what it saves still has the published names. Both are read.
PUBLISHED: Modules = {
    **NORMS,
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.out": "attention.output.dense",
    "attention.positions.up": "attention.self.continuous_position_bias_mlp.0",
    "attention.positions.down": "attention.self.continuous_position_bias_mlp.2",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
}
IN_MEMORY: Modules = {
    **NORMS,
    "attention.qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    "attention.out": "attention.o_proj",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
SINGLE = {
    TABLE: "attention.self.relative_position_bias_table",
    "attention.logit_scale": "attention.self.logit_scale",
    "attention.q_bias": "attention.self.query.bias",
    "attention.v_bias": "attention.self.value.bias",
}
SINGLE_IN_MEMORY = {**SINGLE, TABLE: "attention.relative_position_bias.relative_position_bias_table"}
IGNORED = {
    "decoder.": "the decoder was left out: only masked pre-training uses it",
    "embeddings.mask_token": "",
    "hidden_states_norms.": "the norms of a backbone's feature maps were left out",
}

# ---- config and preprocessing

_SQUASHED = Preprocessing(resize="squash", mean=IMAGENET[0], std=IMAGENET[1])
USUAL = Usual(1e-5, "gelu", "bicubic", "ViT", _SQUASHED)


def recognises(source: Source) -> bool:
    """Whether blocks are numbered by stages, behind the patch embedding of transformers."""
    names = [name.removeprefix(prefix) for name in source.tensors for prefix in PREFIXES if name.startswith(prefix)]
    names += list(source.tensors)
    return any(name.startswith(f"{STAGES}0.blocks.0.") for name in names)


def names(depths: tuple[int, ...], in_memory: bool = False) -> Names:
    """Our names and transformers', as it writes them, or as it has them in memory."""
    block, single = (IN_MEMORY, SINGLE_IN_MEMORY) if in_memory else (PUBLISHED, SINGLE)
    return stage_names(depths, ENDS, block, single, PLACES)


def convert(source: Source, settings: Mapping[str, Any]) -> Foreign:
    """transformers' tensors and JSON files as a config, tensors and preprocessing of ours."""
    tensors = {name.removeprefix("swin.").removeprefix("swinv2."): tensor for name, tensor in source.tensors.items()}
    notes = notes_on_unused(tensors, IGNORED)
    tensors = {name: t for name, t in without_buffers(tensors).items() if not name.startswith(tuple(IGNORED))}
    stored = without_nulls(source.config)
    depths = count_stages(tensors, STAGES)
    table = names(depths, f"{STAGES}0.blocks.0.attention.q_proj.weight" in tensors)
    config = _config(tensors, table, stored, settings)
    fit_tables(tensors, config, table, notes)
    return Foreign(
        config=config,
        tensors=to_ours(tensors, table, config),
        preprocessing=read_preprocessing(source.preprocessor, USUAL, config, notes),
        heads_from="the shapes of its tensors",
        task=read_task(stored, config.classes),
        labels=read_labels(stored, config.classes),
        notes=notes,
    )


def _config(
    tensors: Mapping[str, Tensor], table: Names, stored: Mapping[str, Any], settings: Mapping[str, Any]
) -> SwinConfig:
    fields = read_stages(tensors, count_stages(tensors, STAGES), table)
    _check_stored(stored, fields)
    window = settings.get("window_size", stored.get("window_size")) or _shown_window(tensors, table)
    if window is None:
        raise VitrailError("nothing says how large its windows are: load it with window_size=<number>")
    head = table.theirs("head.out.weight")[0]
    window = pair_of("window_size", window)
    pretrained = stored.get("pretrained_window_sizes") if fields["version"] == "v2" else None
    return SwinConfig(
        **fields,
        image_size=pair_of("image_size", stored.get("image_size", [32 * window[0], 32 * window[1]])),
        activation=hidden_act(stored, USUAL),
        window_size=window,
        pretrained_windows=read_pretrained_windows(pretrained, fields["depths"]),
        padding="before_shift",
        classes=shape_of(tensors, head, 2)[0] if head in tensors else 0,
        dropout=stored.get("hidden_dropout_prob", 0.0),
        attention_dropout=stored.get("attention_probs_dropout_prob", 0.0),
        drop_path=stored.get("drop_path_rate", 0.0),
    )


def _check_stored(stored: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Refuse a config.json that does not go with the tensors, or has what Vitrail's Swin lacks."""
    kind = CLASSES[fields["version"]][0]
    if stored.get("model_type", kind) != kind:
        raise VitrailError(f"config.json has model_type {stored['model_type']!r}, but the weights are a {kind}'s"[:200])
    if stored.get("use_absolute_embeddings"):
        raise VitrailError("config.json has use_absolute_embeddings, which Swin here does not have")
    if stored.get("layer_norm_eps", 1e-5) != 1e-5:
        raise VitrailError(
            f"config.json has layer_norm_eps {stored['layer_norm_eps']!r}; it is 1e-05 in some norms anyway"
        )
    for name, ours in {
        "embed_dim": "width",
        "depths": "depths",
        "num_heads": "heads",
        "num_channels": "channels",
    }.items():
        number = list(fields[ours]) if isinstance(fields[ours], tuple) else fields[ours]
        if stored.get(name, number) != number:
            raise VitrailError(f"config.json has {name} {stored[name]!r}, but the weights have {number}"[:200])


def _shown_window(tensors: Mapping[str, Tensor], table: Names) -> int | None:
    name = table.theirs(f"blocks.0.{TABLE}")[0]
    return table_side(len(tensors[name])) if name in tensors else None


# ---- back out

CLASSES = {  # the model without a head, and with one
    "v1": ("swin", ("SwinModel", "SwinForImageClassification")),
    "v2": ("swinv2", ("Swinv2Model", "Swinv2ForImageClassification")),
}


def write_folder(checkpoint: Checkpoint, folder: str | Path) -> None:
    """Write what `AutoModelForImageClassification.from_pretrained(folder)` loads, or `AutoModel` when there is no head.

    What transformers cannot do alike is added to the checkpoint's notes.
    """
    checkpoint.check()
    config = checkpoint.config
    assert isinstance(config, SwinConfig)
    _check_writable(checkpoint, config)
    notes: list[str] = []
    if config.padding == "after_shift":
        notes.append("where windows do not divide a grid, transformers pads it before it is shifted, this model after")
    write_model(folder, checkpoint, _tensors_to_write(checkpoint, config), _config_json(checkpoint, config), notes)


def _check_writable(checkpoint: Checkpoint, config: SwinConfig) -> None:
    if config.is_dense:
        raise VitrailError(
            f"task {checkpoint.task!r} cannot be written for transformers: only classifiers and encoders can"
        )
    clamped = any(config.stage_window(stage) != config.window_size for stage in range(config.stages))
    writable = {  # a field -> whether transformers has its value, and what it has
        "norm_eps": (config.norm_eps == 1e-5, "some of its norms always have 1e-05"),
        "head": (config.head == "linear" or not config.classes, "its head is one linear layer"),
        "window_size": (config.window_size[0] == config.window_size[1], "its windows are squares"),
        "image_size": (
            config.version == "v2" or not clamped,
            f"its Swin v1 does not run where a grid is smaller than a window of {config.window_size}",
        ),
    }
    for name, (fits, why) in writable.items():
        if not fits:
            raise VitrailError(f"{name} {getattr(config, name)!r} cannot be written for transformers: {why}")


def _config_json(checkpoint: Checkpoint, config: SwinConfig) -> dict[str, Any]:
    kind, classes = CLASSES[config.version]
    values: dict[str, Any] = {
        **encoder_json(checkpoint, kind, classes[config.classes > 0]),
        "embed_dim": config.width,
        "depths": list(config.depths),
        "num_heads": list(config.heads),
        "window_size": config.window_size[0],
        "mlp_ratio": config.mlp_ratio,
        "qkv_bias": config.qkv_bias,
        "hidden_act": HIDDEN_ACT[config.activation],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "drop_path_rate": config.drop_path,
        **head_json(config.classes, checkpoint.labels, checkpoint.task),
    }
    if config.version == "v1":
        return values
    assert config.pretrained_windows is not None
    return values | {"pretrained_window_sizes": list(config.pretrained_windows)}


def _tensors_to_write(checkpoint: Checkpoint, config: SwinConfig) -> dict[str, Tensor]:
    state = {name: tensor.detach().cpu() for name, tensor in checkpoint.model.state_dict().items()}
    state.setdefault("stem.projection.bias", torch.zeros(config.width))
    if config.classes:
        state.setdefault("head.out.bias", torch.zeros(config.classes))
    theirs = to_theirs(state, names(config.depths), config)
    if not config.classes:
        return theirs
    prefix = CLASSES[config.version][0]
    return {name if name.startswith("classifier.") else f"{prefix}.{name}": tensor for name, tensor in theirs.items()}
