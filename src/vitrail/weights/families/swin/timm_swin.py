"""timm's Swin Transformers, v1 and v2, in and out; and Microsoft's own files, whose names timm took over."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.files import replacing
from vitrail.model.encoder_config import pair_of_sides
from vitrail.model.swin.swin_config import SwinConfig
from vitrail.tasks.registry import task_of_outputs
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.families.swin.swin_tensors import (
    TABLE,
    count_stages,
    fit_tables,
    read_pretrained_windows,
    read_stages,
    stage_names,
    table_side,
    without_buffers,
)
from vitrail.weights.families.timm import config_json, refuse_dense
from vitrail.weights.families.timm_json import TimmConfig, read_preprocessing, read_timm_config
from vitrail.weights.family import Foreign, shape_of
from vitrail.weights.naming import Names, to_ours, to_theirs
from vitrail.weights.preprocessing import notes_on_offset
from vitrail.weights.source import Source

NAME = "timm-swin"

# ---- names of tensors

ENDS = {"stem.projection": "patch_embed.proj", "stem_norm": "patch_embed.norm", "norm": "norm"}
BLOCK = {
    "norm1": "norm1",
    "attention.qkv": "attn.qkv",
    "attention.out": "attn.proj",
    "attention.positions.up": "attn.cpb_mlp.0",
    "attention.positions.down": "attn.cpb_mlp.2",
    "norm2": "norm2",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
EXACT = {
    TABLE: "attn.relative_position_bias_table",
    "attention.logit_scale": "attn.logit_scale",
    "attention.q_bias": "attn.q_bias",
    "attention.v_bias": "attn.v_bias",
}
BLOCKS, MERGE, OLD_MERGE = "layers.{stage}.blocks.{i}", "layers.{stage}.downsample", "layers.{before}.downsample"


def names(depths: tuple[int, ...], old: bool = False) -> Names:
    """Our names and timm's; `old`: Microsoft's, and timm's of before 2023."""
    ends = {**ENDS, "head.out": "head" if old else "head.fc"}
    return stage_names(depths, ends, BLOCK, EXACT, (BLOCKS, OLD_MERGE if old else MERGE))


def recognises(source: Source) -> bool:
    """Whether the tensors have the names of timm's SwinTransformer."""
    return "patch_embed.proj.weight" in source.tensors and "layers.0.blocks.0.attn.qkv.weight" in source.tensors


# ---- in


def convert(source: Source, settings: Mapping[str, Any]) -> Foreign:
    """timm's tensors and config.json as a config, tensors and preprocessing of ours."""
    timm_config, tensors = read_timm_config(source), without_buffers(source.tensors)
    depths = count_stages(tensors, "layers.")
    # in new files the first stage has no merging before it
    old = any(name.startswith("layers.0.downsample.") for name in tensors) or "head.weight" in tensors
    table = names(depths, old)
    notes: list[str] = []
    config = _config(tensors, table, source, settings, timm_config)
    fit_tables(tensors, config, table, notes)
    preprocessing, changed = read_preprocessing(timm_config, config, source.file)
    return Foreign(
        config=config,
        tensors=to_ours(tensors, table, config),
        preprocessing=preprocessing,
        heads_from="the shapes of its tensors",
        task=task_of_outputs(config.classes),
        labels=timm_config.labels(config.classes),
        notes=[*notes, *changed],
    )


def _config(
    tensors: Mapping[str, Tensor],
    table: Names,
    source: Source,
    settings: Mapping[str, Any],
    timm_config: TimmConfig,
) -> SwinConfig:
    arguments = timm_config.arguments
    if arguments.get("global_pool", "avg") not in ("", "avg") or arguments.get("act_layer", "gelu") != "gelu":
        raise VitrailError(
            "config.json has another global_pool than avg or act_layer than gelu, and only these are read"
        )
    head = table.theirs("head.out.weight")[0]
    fields = read_stages(tensors, count_stages(tensors, "layers."), table)
    window, pretrained = _windows(source, tensors, table, settings, timm_config)
    size = timm_config.image_size or _named_size(timm_config.architecture or source.file)
    return SwinConfig(
        **fields,
        image_size=size or (32 * window[0], 32 * window[1]),
        window_size=window,
        pretrained_windows=read_pretrained_windows(pretrained if fields["version"] == "v2" else None, fields["depths"]),
        padding="after_shift",
        classes=shape_of(tensors, head, 2)[0] if head in tensors else 0,
        head_bias=head not in tensors or table.theirs("head.out.bias")[0] in tensors,
    )


def _windows(
    source: Source, tensors: Mapping[str, Tensor], table: Names, settings: Mapping[str, Any], timm_config: TimmConfig
) -> tuple[tuple[int, int], Any]:
    """The window, and those of an earlier training: as the caller says, config.json, a name, or the tensors."""
    arguments = timm_config.arguments
    named = re.search(r"window(\d+)(?:to(\d+))?", timm_config.architecture or source.file)
    pretrained = arguments.get("pretrained_window_sizes")
    if pretrained is None and named and named[2]:
        before = int(named[1])
        pretrained = [before, before, before, before // 2]  # the last stage had a smaller grid
    window = settings.get("window_size", arguments.get("window_size"))
    if window is None:
        window = int(named[2] or named[1]) if named else _shown_window(source.tensors, table)
    if window is None:
        raise VitrailError("the file does not say how large its windows are: load it with window_size=<number>")
    if isinstance(window, list | tuple) and len(window) > 2:
        if any(stage != window[0] for stage in window):
            raise VitrailError(f"its stages have windows of different sizes, {list(window)}, and only one size is read")
        window = window[0]
    return pair_of_sides("window_size", window), pretrained


def _shown_window(tensors: Mapping[str, Tensor], table: Names) -> int | None:
    """The window that the first block's table shows, or a buffer of old files."""
    name = table.theirs(f"blocks.0.{TABLE}")[0]
    if name in tensors:
        return table_side(len(tensors[name]))
    index = tensors.get("layers.0.blocks.0.attn.relative_position_index")
    return None if index is None or index.dim() != 2 else round(len(index) ** 0.5)


def _named_size(name: str) -> tuple[int, int] | None:
    """The image size at the end of a published name: swinv2_base_window12to16_192to256."""
    sides = re.findall(r"(?:_|to)(\d{3})(?=$|[._])", name)
    return (int(sides[-1]), int(sides[-1])) if sides else None


# ---- out

ARCHITECTURES = {"v1": "swin_tiny_patch4_window7_224", "v2": "swinv2_tiny_window8_256"}  # model_args say the rest


def write_folder(checkpoint: Checkpoint, folder: str | Path) -> None:
    """A folder that `timm.create_model("local-dir:<folder>", pretrained=True)` loads.

    What timm cannot do alike is added to the checkpoint's notes.
    """
    checkpoint.check()
    refuse_dense(checkpoint)
    folder, config = Path(folder), checkpoint.config
    assert isinstance(config, SwinConfig)
    _refuse_inexpressible(config)
    state = to_theirs(_filled_state(checkpoint, config), names(config.depths), config)
    stored = config_json(checkpoint, ARCHITECTURES[config.version], _arguments(config), "head.fc")
    with replacing(folder / "model.safetensors") as temporary:
        save_file(state, temporary, {"format": "pt"})
    with replacing(folder / "config.json") as temporary:
        temporary.write_text(json.dumps(stored, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if config.padding == "before_shift":
        checkpoint.notes.append(
            "where windows do not divide a grid, timm shifts it before it is padded, this model after"
        )
    checkpoint.notes.extend(notes_on_offset(checkpoint.preprocessing, "timm", "round"))


def _refuse_inexpressible(config: SwinConfig) -> None:
    writable = {  # a field -> whether timm has its value, and what timm has
        "activation": (config.activation == "gelu", "its Swin has gelu"),
        "norm_eps": (config.norm_eps == 1e-5, "in a folder it has 1e-05"),
        "head": (config.head == "linear" or not config.classes, "its head is one linear layer"),
    }
    for name, (fits, why) in writable.items():
        if not fits:
            raise VitrailError(f"{name} {getattr(config, name)!r} cannot be written for timm: {why}")


def _filled_state(checkpoint: Checkpoint, config: SwinConfig) -> dict[str, Tensor]:
    """Our tensors, and biases of 0 where timm always has some."""
    state = {name: tensor.detach().cpu() for name, tensor in checkpoint.model.state_dict().items()}
    state.setdefault("stem.projection.bias", torch.zeros(config.width))
    if config.classes:
        state.setdefault("head.out.bias", torch.zeros(config.classes))
    return state


def _arguments(config: SwinConfig) -> dict[str, Any]:
    one_or_two = {name: list(getattr(config, name)) for name in ("image_size", "patch_size", "window_size")}
    square = {name: pair[0] if pair[0] == pair[1] else pair for name, pair in one_or_two.items()}
    arguments: dict[str, Any] = {
        "img_size": square["image_size"],
        "patch_size": square["patch_size"],
        "in_chans": config.channels,
        "num_classes": config.classes,
        "global_pool": "avg",
        "embed_dim": config.width,
        "depths": list(config.depths),
        "num_heads": list(config.heads),
        "window_size": square["window_size"],
        "mlp_ratio": config.mlp_ratio,
        "qkv_bias": config.qkv_bias,
    }
    if config.version == "v2":
        assert config.pretrained_windows is not None
        arguments["pretrained_window_sizes"] = list(config.pretrained_windows)
    return arguments
