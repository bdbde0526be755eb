"""A teacher: a finished model that is shown what the student is shown, and whose answers or features are learnt.

It is any checkpoint that `vitrail.load` takes, or a CNN of timm with its classifier. It sees the student's own crop,
after augmentation and mixup, as DeiT has it; but under its own normalisation and at its own size: pixels that were
normalised for another network mean something else to it.

    teacher = load_teacher("runs/large/model.safetensors")
    teacher.outputs(images, student)   # (B, K), its answers; images: a batch as `student`, a Preprocessing, prepared it
    teacher.features(images, student)  # [CLS], the pooled vector and the patches
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.model.config import TIMM_CNN
from vitrail.model.encoder import Capture, Encoder
from vitrail.model.positions import Grid
from vitrail.model.presets import is_preset
from vitrail.model.timm_cnn import TimmClassifier
from vitrail.tasks.registry import DEFAULT_TASK, EMBED
from vitrail.weights.checkpoint import checksum
from vitrail.weights.load import load
from vitrail.weights.preprocessing import Preprocessing
from vitrail.weights.pretrained_cnn import architecture_of, find_cnn

LUMA = (0.299, 0.587, 0.114)  # of red, green and blue in grey, as Pillow has it


class TeacherFeatures(NamedTuple):
    """What a teacher made of a batch, after its final norm."""

    cls: Tensor | None  # (B, D); None: it has no [CLS]
    pooled: Tensor  # (B, D): the vector that its head reads
    patches: Tensor  # (B, N, F), row by row; F is D but for some CNNs
    grid: Grid  # (h, w), N = h w


@dataclass(frozen=True, eq=False)
class Teacher:
    """A network that learns no more, and all that is needed to ask it. The caller's autocast decides its precision."""

    name: str  # as the user gave it
    network: Encoder | TimmClassifier
    preprocessing: Preprocessing
    task: str
    labels: list[str] | None  # one name an output, in order; None: not known
    fingerprint: str  # of its weights, config and preprocessing

    def to(self, device: torch.device) -> Teacher:
        """The same, on a device."""
        self.network.to(device)
        return self

    def outputs(self, images: Tensor, student: Preprocessing) -> Tensor:
        """(B, C, H, W), prepared for the student -> (B, K) in float32: its answers about what the student sees."""
        with torch.inference_mode():
            outputs = self.network(self.view(images, student)).float()
        return outputs.clone()  # outside of inference mode, so that a loss can keep it

    def features(self, images: Tensor, student: Preprocessing) -> TeacherFeatures:
        """(B, C, H, W), prepared for the student -> its tokens, in float32."""
        with torch.inference_mode():
            own = self.view(images, student)
            if isinstance(self.network, TimmClassifier):
                found = _features_of_cnn(self.network, own)
            else:
                found = _features_of_encoder(self.network, own)
        return TeacherFeatures(
            cls=None if found.cls is None else found.cls.float().clone(),  # outside of inference mode, as above
            pooled=found.pooled.float().clone(),
            patches=found.patches.float().clone(),
            grid=found.grid,
        )

    def feature_shapes(self) -> tuple[int, int, Grid]:
        """D, F and the grid of its features."""
        parameter = next(self.network.parameters())
        height, width = self.preprocessing.size
        images = torch.zeros(1, self.preprocessing.channels, height, width, device=parameter.device)
        features = self.features(images, self.preprocessing)
        return features.pooled.shape[1], features.patches.shape[2], features.grid

    def view(self, images: Tensor, student: Preprocessing) -> Tensor:
        """A batch that was prepared for the student, (B, C, H, W), as the teacher's own preprocessing gives the same
        pixels: its channels, its size, its mean and std."""
        own = self.preprocessing
        if (student.mean, student.std) == (own.mean, own.std) and tuple(images.shape[2:]) == own.size:
            return images
        mean, std = _per_channel(student.mean, images), _per_channel(student.std, images)
        pixels = in_channels(images.float() * std + mean, own.channels, self.name)  # 0..1
        if tuple(pixels.shape[2:]) != own.size:
            mode = "bilinear" if own.interpolation == "bilinear" else "bicubic"
            # antialias: filtered as Pillow does; clamped as its bytes are, since bicubic weights overshoot
            pixels = F.interpolate(pixels, size=own.size, mode=mode, antialias=True).clamp(0, 1)
        return (pixels - _per_channel(own.mean, pixels)) / _per_channel(own.std, pixels)


def load_teacher(name: str | Path) -> Teacher:
    """The teacher of a file, a folder, a published name or a hub id, as `vitrail.load` takes them, or a CNN of timm:
    "timm:resnet18.a1_in1k", or a file or folder of its weights."""
    text = str(name)
    if text.startswith(TIMM_CNN):
        return _cnn(text)
    if not Path(text).exists() and is_preset(text):
        raise VitrailError(f"{text} is a preset with fresh weights, which have nothing to teach: give a trained model")
    try:
        checkpoint = load(text)
    except VitrailError:
        if not _is_cnn(text):
            raise
        return _cnn(text)
    network = checkpoint.model.eval().requires_grad_(False)
    description = json.dumps(checkpoint.config.to_dict(), sort_keys=True)
    return Teacher(
        name=text,
        network=network,
        preprocessing=checkpoint.preprocessing,
        task=checkpoint.task if checkpoint.config.classes else EMBED,
        labels=checkpoint.labels,
        fingerprint=_fingerprint(network, checkpoint.preprocessing, description),
    )


def in_channels(pixels: Tensor, channels: int, teacher: str) -> Tensor:
    """(B, C, H, W) in 0..1 with another number of channels: grey is repeated, and colour becomes grey as Pillow's
    does."""
    own = pixels.shape[1]
    if own == channels:
        return pixels
    if own == 1:
        return pixels.expand(-1, channels, -1, -1)
    if own == 3 and channels == 1:
        return (pixels * _per_channel(LUMA, pixels)).sum(1, keepdim=True)
    raise VitrailError(f"the student's images have {own} channels, and the teacher {teacher} takes {channels}")


# ---- parts


def _cnn(name: str) -> Teacher:
    found = find_cnn(name)
    network, labels = found.build_classifier()
    preprocessing = Preprocessing(size=found.size, mean=found.mean, std=found.std)
    return Teacher(
        name=name,
        network=network.eval().requires_grad_(False),
        preprocessing=preprocessing,
        task=DEFAULT_TASK,
        labels=labels,
        fingerprint=_fingerprint(network, preprocessing, found.config_name),
    )


def _is_cnn(name: str) -> bool:
    """Whether this is a file or folder of weights whose architecture timm knows."""
    if not Path(name).exists():
        return False
    try:
        architecture_of(name)
    except VitrailError:
        return False
    return True


def _fingerprint(network: nn.Module, preprocessing: Preprocessing, description: str) -> str:
    text = f"{description} {json.dumps(preprocessing.to_dict(), sort_keys=True)}"
    return checksum(text, {name: tensor.contiguous() for name, tensor in network.state_dict().items()})[:32]


def _features_of_encoder(network: Encoder, images: Tensor) -> TeacherFeatures:
    capture = Capture(blocks=[-1], all_tokens=True)
    network.forward_embedding(network.embed(images), capture=capture)
    assert capture.normed is not None and capture.pooled is not None
    grid = capture.steps[network.depth - 1].grid
    tokens = network.split(capture.normed, grid)
    return TeacherFeatures(tokens.cls, capture.pooled, tokens.patches, grid)


def _features_of_cnn(network: TimmClassifier, images: Tensor) -> TeacherFeatures:
    features, pooled = network.feature_map(images)  # (B, F, h, w), (B, D)
    height, width = features.shape[2:]
    return TeacherFeatures(None, pooled, features.flatten(2).transpose(1, 2), (height, width))


def _per_channel(values: tuple[float, ...], images: Tensor) -> Tensor:
    """(1, C, 1, 1)."""
    return torch.tensor(values, dtype=torch.float32, device=images.device).view(1, -1, 1, 1)
