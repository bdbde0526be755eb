"""A model with all that is needed to use it, and our file that holds it: one .safetensors, checked when it is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.files import replacing
from vitrail.model.config import ViTConfig
from vitrail.model.cost import parameters
from vitrail.model.encoder import Encoder
from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.presets import config_from_dict
from vitrail.model.vit import ViT
from vitrail.tasks.registry import DEFAULT_TASK, EMBED, task_class, task_names
from vitrail.weights.familiarity.kept_vectors import ENTRY, KeptVectors, kept_text, read_kept
from vitrail.weights.familiarity.reference_vectors import check_width
from vitrail.weights.model_description import CHECKSUM, FORMAT, KEY, read_description
from vitrail.weights.naming import empty_model
from vitrail.weights.preprocessing import Preprocessing

SLACK = 1_000_000  # parameters that a config may ask for and not have: what that takes is nothing
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass
class Checkpoint:
    """What `vitrail.load` gives: the network, what its answers mean, how images are prepared, where it came from."""

    model: Encoder
    preprocessing: Preprocessing
    task: str = DEFAULT_TASK
    labels: list[str] | None = None  # one name an output, in order
    provenance: dict[str, Any] = field(default_factory=dict)
    familiarity: KeptVectors | None = None  # how like its training pictures a new one is; None: its file does not tell
    path: Path | None = field(default=None, init=False, compare=False)  # that it was read from, while it is as read

    @property
    def config(self) -> EncoderConfig:
        """The config of its model."""
        return self.model.config

    @property
    def vit(self) -> ViT:
        """Its model, where only a plain ViT will do."""
        if not isinstance(self.model, ViT):
            raise VitrailError(f"this goes with a plain ViT, and not with {self.config.in_words()}")
        return self.model

    @property
    def notes(self) -> list[str]:
        """What was assumed, changed or left out on the way here, a sentence each."""
        return self.provenance.setdefault("notes", [])

    def check(self) -> None:
        """Refuse parts that do not fit together, naming both numbers."""
        tasks = (*task_names(), EMBED)
        if self.task not in tasks:
            raise VitrailError(f"the task is {self.task!r}; choose one of {', '.join(tasks)}")
        if self.labels is not None:
            if not isinstance(self.labels, list) or not all(isinstance(label, str) for label in self.labels):
                raise VitrailError("labels are a list of texts, one an output")
            if len(self.labels) != self.config.classes:
                raise VitrailError(f"there are {len(self.labels)} labels for {self.config.classes} classes")
        heads = () if self.task == EMBED else task_class(self.task).heads
        if self.config.classes and heads and self.config.head not in heads:
            raise VitrailError(f"the task {self.task} does not go with the head {self.config.head!r}")
        if self.preprocessing.channels != self.config.channels:
            raise VitrailError(
                f"preprocessing gives {self.preprocessing.channels} channels, the model takes {self.config.channels}"
            )
        for axis, size, patch in zip(("height", "width"), self.preprocessing.size, self.config.patch_size, strict=True):
            if size % patch:
                raise VitrailError(f"preprocessing gives {axis} {size}, which patch size {patch} does not divide")
        if self.familiarity is not None:
            check_width(self.familiarity, self.config.pooled_width)

    def save(self, path: str | Path) -> Path:
        """Write our file. A crash in the middle leaves what stood there before."""
        self.check()
        path = Path(path)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.model.state_dict().items()}
        description = json.dumps(
            {
                "format": FORMAT,
                "config": self.config.to_dict(),
                "task": self.task,
                "labels": self.labels,
                "preprocessing": self.preprocessing.to_dict(),
                "provenance": self.provenance,
            },
            ensure_ascii=False,
        )
        metadata = {KEY: description, CHECKSUM: checksum(description, tensors)}
        if self.familiarity is not None:
            metadata[ENTRY] = kept_text(self.familiarity)
        write_tensors(path, tensors, metadata)
        return path


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """A .safetensors file that is there as a whole or not at all."""
    with replacing(path) as temporary:
        try:
            save_file(dict(tensors), temporary, dict(metadata))
        except SafetensorError as error:  # it wraps what the system says, such as "No space left on device"
            raise VitrailError(f"cannot write {path}: {error}") from None


def checksum(description: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the description and every tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(description.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def from_file(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str], settings: dict[str, Any], cnn: nn.Module | None = None
) -> Checkpoint:
    """Our file's content as a checkpoint, after everything in it was checked. The caller's error names the file."""
    description = read_description(metadata[KEY])
    if checksum(metadata[KEY], tensors) != metadata.get(CHECKSUM):
        raise VitrailError("its checksum does not match: the file was damaged or edited; copy it again from its source")
    config = config_from_dict(description["config"])
    check_size(tensors, config)
    _check_types(tensors)
    _check_provenance(description["provenance"])
    model = filled_model(config.replace(**settings), tensors, cnn)
    told = ENTRY in metadata and not settings  # a network that was changed gives other vectors
    checkpoint = Checkpoint(
        model=model,
        preprocessing=Preprocessing.from_dict(description["preprocessing"]),
        task=description["task"],
        labels=description["labels"],
        provenance=description["provenance"],
        familiarity=read_kept(metadata[ENTRY]) if told else None,
    )
    checkpoint.check()
    return checkpoint


def filled_model(config: EncoderConfig, tensors: Mapping[str, Tensor], cnn: nn.Module | None = None) -> Encoder:
    """A model that takes these tensors as its weights; one that is missing, left over or of another shape is named."""
    if isinstance(config, ViTConfig) and config.stem == "features" and config.cnn is None and cnn is None:
        raise VitrailError("its stem is a CNN of your own, which the file cannot build: load it with cnn=<your module>")
    model = empty_model(config, cnn)
    for name, expected in model.state_dict().items():
        if name not in tensors:
            raise VitrailError(f"it lacks {name}, which its config asks for")
        if tensors[name].shape != expected.shape:
            shape, expected_shape = tuple(tensors[name].shape), tuple(expected.shape)
            raise VitrailError(f"{name} has shape {shape}, its config asks for {expected_shape}")
    unused = sorted(set(tensors) - set(model.state_dict()))
    if unused:
        raise VitrailError(f"it holds {unused[0]}, which has no place in its config")
    model.load_state_dict(dict(tensors), assign=True)
    return model.eval()


def check_size(tensors: Mapping[str, Tensor], config: EncoderConfig) -> None:
    """Refuse a config of a larger model than the tensors are, before it is built: building takes time and memory."""
    for name in ("depth", "stem_blocks", "head_depth"):
        number = getattr(config, name, 0)
        if number > len(tensors):
            raise VitrailError(f"its config has {name} {number}, but it holds only {len(tensors)} tensors")
    held = sum(tensor.numel() for tensor in tensors.values())
    for name in ("width", "mlp_width", "head_width", "channels", "registers", "classes", "queries"):
        number = getattr(config, name) if name in config.fields() else None
        if number is not None and number > SLACK + held:
            raise VitrailError(f"its config has {name} {number}, but it holds only {held:,} values")
    asked = parameters(config)
    if asked > SLACK + 4 * held:  # where it is about as large, a tensor that does not fit is named later
        raise VitrailError(f"its config asks for {asked:,} parameters, but it holds only {held:,} values")


def _check_provenance(provenance: Any) -> None:
    if not isinstance(provenance, dict):
        raise VitrailError("its provenance is not an object of named fields")
    notes = provenance.get("notes", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise VitrailError("the notes of its provenance are not a list of sentences")


def _check_types(tensors: Mapping[str, Tensor]) -> None:
    types = {tensor.dtype for name, tensor in tensors.items() if not name.endswith("num_batches_tracked")}
    if len(types) != 1 or not types <= set(FLOATS):
        raise VitrailError(
            f"its weights are of type {', '.join(sorted(map(str, types))) or 'none'}; one float type is needed"
        )
