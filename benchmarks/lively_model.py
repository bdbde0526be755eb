"""A network that was never trained and yet gives different images clearly different answers.

Of weights as training starts from, the answers of all images are almost the same: rounding decides which class is
first, so engines that are as exact as can be seem to disagree.
"""

from __future__ import annotations

from pathlib import Path

import torch

import vitrail
from vitrail.weights.preprocessing import Preprocessing

CLASSES = 8


def save_model(path: Path, preset: str = "S/16") -> None:
    """A model with larger weights than training starts from, so that images get clearly different answers."""
    torch.manual_seed(0)
    model = vitrail.ViT(vitrail.preset(preset, classes=CLASSES)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 0.04)
        for layer in model.output_layers():
            layer.weight.normal_(0, 0.08)
    labels = [f"class {number}" for number in range(CLASSES)]
    vitrail.Checkpoint(model, Preprocessing(size=model.config.image_size), "classify", labels).save(path)
