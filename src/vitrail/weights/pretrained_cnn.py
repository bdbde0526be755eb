"""A pre-trained CNN, for stem="features" or as a teacher: by timm's name of its weights, or from a file of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.model.config import TIMM_CNN
from vitrail.model.timm_cnn import TimmClassifier, TimmCNN, check_architecture, timm, timm_classifier, timm_cnn
from vitrail.text import listing
from vitrail.weights import hub
from vitrail.weights.families.timm_json import read_timm_config
from vitrail.weights.imagenet_names import name_outputs
from vitrail.weights.preprocessing import IMAGENET
from vitrail.weights.source import ENDINGS, Source, read, read_json

Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class PretrainedCNN:
    """Where a CNN's weights are, and how its images are prepared."""

    architecture: str  # timm's name without that of the weights: resnet18
    source: Source
    mean: tuple[float, ...] = IMAGENET[0]
    std: tuple[float, ...] = IMAGENET[1]
    size: tuple[int, int] = (224, 224)  # height, width of the images that its classifier was trained on

    @property
    def config_name(self) -> str:
        """What ViTConfig calls it: timm:resnet18."""
        return f"{TIMM_CNN}{self.architecture}"

    def build(self, stride: int, channels: int) -> TimmCNN:
        """The CNN with its weights, up to the map of this stride. Its first layer is adapted to the channels."""
        return self._filled(lambda **weights: timm_cnn(self.architecture, stride, channels, **weights))

    def build_classifier(self) -> tuple[TimmClassifier, list[str] | None]:
        """The whole network with its classifier, and the names of its outputs where they are known."""
        name = getattr(timm().models.get_pretrained_cfg(self.architecture), "classifier", None)
        weight = self.source.tensors.get(f"{name}.weight")
        if weight is None:
            raise VitrailError(
                f"{self.source.name} has no classifier, so it gives no answers: give weights that have one"
            )
        classes = len(weight)
        network = self._filled(
            lambda **weights: timm_classifier(self.architecture, classes, **weights), num_classes=classes
        )
        labels, _ = name_outputs(read_timm_config(self.source).labels(classes), classes)
        return network, labels

    def _filled(self, build: Callable[..., Network], **published: Any) -> Network:
        """What `build` makes of these weights. published: what timm is told of them."""
        # copied: timm takes out what it does not need
        overlay = {"state_dict": dict(self.source.tensors), **published}
        try:
            return build(pretrained=True, pretrained_cfg_overlay=overlay)
        except (RuntimeError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            raise VitrailError(f"{self.source.name} does not fit timm's {self.architecture}: {reason}") from None


def architecture_of(name: str) -> str:
    """timm's architecture behind what model.cnn says: resnet18 of 'timm:resnet18.a1_in1k', or of a file of it."""
    if name.startswith(TIMM_CNN):
        architecture = name.removeprefix(TIMM_CNN).split(".")[0]
    else:
        architecture = _architecture_of_file(_existing(name))
    check_architecture(architecture)
    return architecture


def find_cnn(name: str) -> PretrainedCNN:
    """The CNN of 'timm:resnet18.a1_in1k', out of the hub's cache where there is no network, or of a local file."""
    architecture = architecture_of(name)
    if name.startswith(TIMM_CNN):
        published = _published(name.removeprefix(TIMM_CNN))
        source = read(hub.fetch(published.hf_hub_id), published.hf_hub_id)
        mean, std, size = published.mean, published.std, published.input_size[1:]
    else:
        source = read(_existing(name), name)
        stored = source.config.get("pretrained_cfg", {})
        mean, std = _normalisation(stored if isinstance(stored, dict) else {}, architecture)
        usual = timm().models.get_pretrained_cfg(architecture)
        size = read_timm_config(source).input_size or (usual.input_size[1:] if usual is not None else (224, 224))
    _check_tensors(source.name, architecture, source.tensors)
    return PretrainedCNN(architecture, source, mean, std, (size[0], size[1]))


def _published(weights: str) -> Any:
    """timm's description of weights: the hub id, mean and std."""
    try:
        published = timm().models.get_pretrained_cfg(weights)
    except RuntimeError:  # the architecture has no weights of that name
        published = None
    if published is None or not published.hf_hub_id:
        named = timm().list_pretrained(f"{weights.split('.')[0]}.*")
        hint = f": choose one of {listing(named, 5)}" if named else ""
        raise VitrailError(f"timm publishes no weights called {weights!r} on the hub{hint}")
    return published


def _existing(name: str) -> Path:
    path = Path(name)
    if not path.exists():
        raise VitrailError(
            f"model.cnn is {name!r}: give timm's name of weights, such as {TIMM_CNN}resnet18.a1_in1k, or a file of them"
        )
    return path


def _architecture_of_file(path: Path) -> str:
    """What config.json beside it says, as timm and the hub write it; else the file's or folder's own name."""
    folder = path if path.is_dir() else path.parent
    stored = read_json(folder / "config.json").get("architecture")
    if isinstance(stored, str):
        return stored.split(".")[0]
    name = path.name
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    architecture = name.split(".")[0].split("-")[0]
    if not timm().is_model(architecture):
        raise VitrailError(
            f"{path} does not say which of timm's architectures it is: put its config.json beside it, or name it as "
            "timm does, such as resnet18.safetensors"
        )
    return architecture


def _normalisation(stored: Mapping[str, object], architecture: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """By the config.json beside the file, else as timm's own weights of the architecture."""
    published = timm().models.get_pretrained_cfg(architecture)
    usual = (published.mean, published.std) if published is not None else IMAGENET
    values = []
    for own, default in zip((stored.get("mean"), stored.get("std")), usual, strict=True):
        numbers = isinstance(own, list) and len(own) > 0 and all(isinstance(value, int | float) for value in own)
        values.append(tuple(float(value) for value in own) if numbers and isinstance(own, list) else tuple(default))
    return values[0], values[1]


def _check_tensors(name: str, architecture: str, tensors: Mapping[str, Tensor]) -> None:
    """timm leaves out silently what a file lacks, so it is looked for first."""
    with torch.device("meta"):
        expected = timm().create_model(architecture, num_classes=0).state_dict()
    missing = [key for key in expected if key not in tensors and not key.endswith("num_batches_tracked")]
    if missing:
        raise VitrailError(
            f"{name} lacks {len(missing)} of the {len(expected)} tensors of timm's {architecture}, such as "
            f"{missing[0]}: is it a file of that architecture?"
        )
