"""What the encoder attends to in some fixed pictures, kept at every evaluation: how it learns to see."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.explanation.methods.attention_maps import attention_maps, attention_of_all
from vitrail.files import map_array, replacing
from vitrail.model.vit import ViT

PICTURES = 6
FOLDER = "attention"


def attention_of(encoder: ViT, images: Tensor) -> Tensor:
    """(B, C, H, W), normalised -> (B, h, w): what [CLS] attends to in the last block, the mean over its heads. Without
    [CLS]: what all patches attend to, on average."""
    last = encoder.depth - 1
    if encoder.config.cls_token:
        [maps] = attention_maps(encoder, images, blocks=[last])
        return maps.patches.mean(1)
    [(_, groups)] = attention_of_all(encoder, images, blocks=[last])
    grid = images.shape[2] // encoder.config.patch_size[0], images.shape[3] // encoder.config.patch_size[1]
    received = torch.zeros(len(images), encoder.prefix + grid[0] * grid[1])
    for group in groups:
        received[:, group.keys] += group.weights.sum(1).cpu()
    patches = received[:, encoder.prefix :]
    return (patches / patches.sum(1, keepdim=True)).unflatten(1, grid)


def record_attention(run: Path, step: int, maps: Tensor) -> None:
    """Write the maps (P, h, w) of a step into the run's folder."""
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)
    with replacing(folder / f"step-{step:08d}.npy") as temporary, temporary.open("wb") as stream:
        np.save(stream, maps.float().cpu().numpy())


def recorded_attention(run: Path) -> dict[int, NDArray[np.float32]]:
    """The maps of every recorded step, in order: of those files that are whole, and as large as the last."""
    maps = {step: map_array(file) for step, file in sorted(_files(run).items())}
    shapes = [found.shape for found in maps.values() if found is not None]
    return {step: np.array(found) for step, found in maps.items() if found is not None and found.shape == shapes[-1]}


def _files(run: Path) -> dict[int, Path]:
    """By their step."""
    names = ((re.fullmatch(r"step-(\d{1,18})\.npy", file.name), file) for file in (run / FOLDER).glob("step-*.npy"))
    return {int(name[1]): file for name, file in names if name}


def forget_attention_after(run: Path, step: int) -> None:
    """Drop the maps of steps that are about to be done again."""
    for recorded, file in _files(run).items():
        if recorded > step:
            file.unlink(missing_ok=True)
