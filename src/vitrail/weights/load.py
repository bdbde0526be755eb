"""`vitrail.load`: our file, any foreign family, a published name, a hub id or a preset, as one object."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.errors import VitrailError
from vitrail.model.presets import build_network, is_preset, preset
from vitrail.tasks.registry import DEFAULT_TASK, task_of_outputs
from vitrail.weights import hub
from vitrail.weights.adapt import adapt
from vitrail.weights.checkpoint import Checkpoint, filled_model, from_file
from vitrail.weights.families import recognise
from vitrail.weights.imagenet_names import name_outputs
from vitrail.weights.lora_adapter import is_adapter, read_merged
from vitrail.weights.model_description import KEY
from vitrail.weights.preprocessing import HALF, IMAGENET, Preprocessing
from vitrail.weights.published import no_such_model, published_models
from vitrail.weights.source import ENDINGS, Source, read

log = logging.getLogger("vitrail")


def load(
    source: str | Path,
    *,
    classes: int | None = None,
    labels: Sequence[str] | None = None,
    channels: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    family: str | None = None,
    cnn: nn.Module | None = None,
    **settings: Any,
) -> Checkpoint:
    """Load a model from a file, a folder, a published name (`dinov2-s`) or a hub id (`owner/name`), or make a preset
    (`S/16`) with fresh weights. A text that could be several of these is the first of: file or folder, preset,
    published name, hub id.

    `classes` or `labels`: another number of answers; the backbone is kept, the head is new.
    `channels`: another number of input channels; the stem's weights are summed or repeated.
    `image_size`: another size; learned positions are resampled by the family's rule.
    `family`: the family's name, where the tensors' names do not settle it.
    `settings`: fields of the config that the file does not tell, or that you want otherwise (`drop_path=0.1`).
    What was assumed or changed on the way is in `.notes`, and logged.
    """
    text = str(source)
    path = Path(source)
    if text and path.exists():
        checkpoint = _from_source(_read(path, text), image_size, family, cnn, settings)
    elif is_preset(text):
        checkpoint = _from_preset(text, cnn, settings)
    elif (known := published_models().get(text)) is not None:
        checkpoint = _from_source(_read(hub.fetch(known.hub_id), known.hub_id), image_size, family, cnn, settings)
        checkpoint.provenance |= {"published": known.name, "licence": known.licence}
        if not known.commercial:
            checkpoint.notes.append(
                f"the licence of its weights is {known.licence}, also for what is trained from them"
            )
    elif hub.is_hub_id(text) and path.suffix not in ENDINGS:
        checkpoint = _from_source(_read(hub.fetch(text), text), image_size, family, cnn, settings)
    else:
        raise no_such_model(text)
    before = len(checkpoint.notes)
    checkpoint = adapt(checkpoint, classes=classes, labels=labels, channels=channels, image_size=image_size)
    for note in checkpoint.notes[before:]:
        log.warning("%s: %s", text, note)
    checkpoint.path = path if text and path.exists() else None
    return checkpoint


def _read(path: Path, name: str) -> Source:
    return read_merged(path, name) if is_adapter(path) else read(path, name)


def _from_preset(name: str, cnn: nn.Module | None, settings: dict[str, Any]) -> Checkpoint:
    config = preset(name, **settings)
    mean, std = IMAGENET if name.startswith(("D", "swin")) else HALF  # DeiT, DINO, DINOv2, Swin
    return Checkpoint(
        model=build_network(config, cnn).eval(),
        preprocessing=Preprocessing(size=config.image_size, mean=mean, std=std).for_channels(config.channels),
        task=task_of_outputs(config.classes),
        provenance={"source": name, "notes": [f"fresh weights: the preset {name} is untrained"]},
    )


def _from_source(
    source: Source,
    image_size: int | tuple[int, int] | None,
    family: str | None,
    cnn: nn.Module | None,
    settings: dict[str, Any],
) -> Checkpoint:
    try:
        if KEY in source.metadata and family is None:
            own = {name: value for name, value in settings.items() if name != "window_size"}
            checkpoint = from_file(source.tensors, source.metadata, own, cnn)
            return adapt(checkpoint, window_size=settings.get("window_size"))  # its tables go with it
        convert_settings = settings if image_size is None else {**settings, "image_size": image_size}
        family_module = recognise(source, family)
        foreign = family_module.convert(source, convert_settings)
        tensors = {name: tensor.float() for name, tensor in foreign.tensors.items()}
        model = filled_model(foreign.config.replace(**settings), tensors)
    except VitrailError as error:
        prefix = "" if str(error).startswith(source.name) else f"{source.name} cannot be loaded: "
        raise VitrailError(f"{prefix}{error}") from None
    labels, notes = foreign.labels, [*foreign.notes, *source.notes]
    if foreign.task == DEFAULT_TASK:
        labels, more = name_outputs(labels, model.config.classes)
        notes = [*notes, *more]
    provenance = {"source": Path(source.name).name, "family": family_module.NAME, "heads": foreign.heads_from}
    for note in notes:
        log.info("%s: %s", source.name, note)
    checkpoint = Checkpoint(
        model=model.to(torch.float32),
        preprocessing=foreign.preprocessing,
        task=foreign.task,
        labels=labels,
        provenance={**provenance, "notes": list(notes)},
    )
    checkpoint.check()
    return checkpoint
