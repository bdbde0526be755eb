"""A folder as transformers writes it, from a checkpoint of ours: config.json, preprocessor_config.json, weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.files import replacing
from vitrail.model.config import ViTConfig
from vitrail.tasks.registry import DEFAULT_TASK
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.families.transformers_json import INTERPOLATION, TASKS
from vitrail.weights.preprocessing import Preprocessing, notes_on_offset

HIDDEN_ACT = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "quick_gelu": "quick_gelu"}  # by activation

Writable = Mapping[str, tuple[tuple[Any, ...], str]]  # a field of ViTConfig -> the values that can be written, and why


def check_writable(config: ViTConfig, writable: Writable) -> None:
    """Refuse a config that a model of transformers does not have, by the first field that differs."""
    for field, (values, why) in writable.items():
        if getattr(config, field) not in values:
            raise VitrailError(f"{field} {getattr(config, field)!r} cannot be written for transformers: {why}")


def write_model(
    folder: str | Path,
    checkpoint: Checkpoint,
    tensors: dict[str, Tensor],
    config_json: Mapping[str, Any],
    notes: Sequence[str] = (),
) -> None:
    """What `from_pretrained(folder)` loads. The checkpoint is told the notes, and what no processor does alike."""
    folder, all_notes = Path(folder), list(notes)
    described = {
        "preprocessor_config.json": preprocessor_json(checkpoint.preprocessing, all_notes),
        "config.json": config_json,
    }
    with replacing(folder / "model.safetensors") as temporary:
        save_file(tensors, temporary, {"format": "pt"})
    for name, values in described.items():
        with replacing(folder / name) as temporary:
            temporary.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    checkpoint.notes.extend(all_notes)


# ---- config.json


def encoder_json(checkpoint: Checkpoint, kind: str, architecture: str) -> dict[str, Any]:
    """What config.json has for any network."""
    config = checkpoint.config
    return {
        "architectures": [architecture],
        "model_type": kind,
        "dtype": str(next(checkpoint.model.parameters()).dtype).removeprefix("torch."),
        "image_size": one_or_two(config.image_size),
        "patch_size": one_or_two(config.patch_size),
        "num_channels": config.channels,
        "layer_norm_eps": config.norm_eps,
    }


def vit_json(checkpoint: Checkpoint, kind: str, architecture: str) -> dict[str, Any]:
    """What config.json has for any plain ViT."""
    config = checkpoint.vit.config
    return {
        **encoder_json(checkpoint, kind, architecture),
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
    }


def head_json(classes: int, labels: list[str] | None, task: str) -> dict[str, Any]:
    """What config.json says of the head's outputs."""
    if not classes:
        return {}
    kind = {ours: theirs for theirs, ours in TASKS.items()}.get(task)
    # transformers takes one output for a number, and refuses to hear otherwise
    values: dict[str, Any] = {} if kind is None or (task == DEFAULT_TASK and classes == 1) else {"problem_type": kind}
    if labels is None:
        return {**values, "num_labels": classes}
    id2label = {str(i): label for i, label in enumerate(labels)}
    return {**values, "id2label": id2label, "label2id": {label: i for i, label in enumerate(labels)}}


def one_or_two(size: tuple[int, int]) -> int | list[int]:
    """A size as config.json has it: one number for a square."""
    return size[0] if size[0] == size[1] else list(size)


# ---- preprocessor_config.json


def preprocessor_json(preprocessing: Preprocessing, notes: list[str]) -> dict[str, Any]:
    """The preprocessor_config.json of a processor that does the same; where none can, that is added to the notes."""
    height, width = preprocessing.size
    values: dict[str, Any] = {
        "do_resize": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
        "resample": {name: number for number, name in INTERPOLATION.items()}[preprocessing.interpolation],
        "do_convert_rgb": preprocessing.channels == 3,
    }
    if preprocessing.resize == "crop":
        edge = min(preprocessing.before_crop)
        values |= {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": edge}, "do_center_crop": True}
        if height != width:
            notes.append(f"transformers' centre crop pads with black where an image does not fill {preprocessing.size}")
        notes.extend(notes_on_offset(preprocessing, "transformers", "floor"))
        return {**values, "crop_size": {"height": height, "width": width}}
    if preprocessing.resize == "pad":
        notes.append("preprocessing resize 'pad' cannot be written for transformers: its processor squashes instead")
    squashed = dict(zip(("height", "width"), preprocessing.before_crop, strict=True))
    if preprocessing.resize != "squash" or preprocessing.before_crop == preprocessing.size:
        return {**values, "image_processor_type": "ViTImageProcessor", "size": {"height": height, "width": width}}
    notes.extend(notes_on_offset(preprocessing, "transformers", "floor"))
    values |= {"image_processor_type": "DeiTImageProcessor", "size": squashed, "do_center_crop": True}
    return {**values, "crop_size": {"height": height, "width": width}}
