"""How well the attention of [CLS] covers the object of a generated scene, as DINO's figure measures it on VOC."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitrail.data.loading.transforms import normalise, prepare
from vitrail.data.synthetic.scenes import make_scene
from vitrail.explanation.methods.attention_maps import attention_maps
from vitrail.model.presets import build_network
from vitrail.model.vit import ViT
from vitrail.tasks.shared.scene import SHAPES
from vitrail.visuals.colours import overlay
from vitrail.weights.load import load

MEASURED = 200  # scenes
LEARNT, UNSEEN = 0, 1  # seeds of scenes
SHOWN = 6  # scenes of the picture
SIDE = 192  # pixels of each


def write_scenes(folder: Path, count: int, side: int) -> None:
    """Scenes without labels, one file each."""
    folder.mkdir(parents=True)
    for index in range(count):
        scene = make_scene(index % len(SHAPES), side, LEARNT, index)
        Image.fromarray(scene.picture).save(folder / f"{index:05d}.png")


def measure_attention(run: Path, side: int, mass: float, picture: Path | None) -> tuple[float, float]:
    """The mean Jaccard index on scenes that were not learnt from: with random weights, and with those of the run."""
    checkpoint = load(run)
    scenes = [make_scene(index % len(SHAPES), side, UNSEEN, index) for index in range(MEASURED)]
    pixels = np.stack([prepare(scene.picture, checkpoint.preprocessing) for scene in scenes])
    images = normalise(torch.from_numpy(pixels), checkpoint.preprocessing)
    objects = torch.from_numpy(np.stack([np.any([shape.pixels for shape in scene.shapes], axis=0) for scene in scenes]))
    torch.manual_seed(0)
    fresh = build_network(checkpoint.config)
    assert isinstance(fresh, ViT)
    maps = [attention(model, images) for model in (fresh.eval(), checkpoint.vit.eval())]
    if picture is not None:
        write_picture(picture, [scene.picture for scene in scenes[:SHOWN]], [one[:SHOWN] for one in maps])
    return jaccard(maps[0], objects, mass), jaccard(maps[1], objects, mass)


def attention(model: ViT, images: Tensor) -> Tensor:
    """(B, heads, h, w): what [CLS] attends to in the last block."""
    parts = []
    for batch in images.split(50):
        [last] = attention_maps(model, batch, blocks=[model.depth - 1])
        parts.append(last.patches)
    return torch.cat(parts)


def jaccard(maps: Tensor, objects: Tensor, mass: float) -> float:
    """maps (B, heads, h, w), objects (B, H, W): the smallest set of patches with this part of the attention, against
    the object; of the heads the best one for each scene."""
    rows = maps.flatten(2)
    rows = rows / rows.sum(-1, keepdim=True)
    values, order = rows.sort(dim=-1, descending=True)
    inside = values.cumsum(-1) - values < mass
    masks = torch.zeros_like(inside).scatter(-1, order, inside).unflatten(-1, maps.shape[2:])
    large = F.interpolate(masks.float(), objects.shape[1:], mode="nearest").bool()  # (B, heads, H, W)
    truth = objects[:, None]
    scores = (large & truth).sum((2, 3)) / (large | truth).sum((2, 3)).clamp(min=1)
    return float(scores.max(1).values.mean())


def write_picture(path: Path, pictures: list[NDArray[np.uint8]], maps: list[Tensor]) -> None:
    """A column a scene: itself, attention with random weights, attention after learning."""
    rows = [[np.asarray(Image.fromarray(one).resize((SIDE, SIDE))) for one in pictures]]
    for one in maps:
        best = one.mean(1).numpy()
        rows.append([overlay(large, values) for large, values in zip(rows[0], best, strict=True)])
    Image.fromarray(np.vstack([np.hstack(row) for row in rows])).save(path)
