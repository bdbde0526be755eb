"""Pictures as PIL users feed them: a torch Dataset that opens a file, crops, flips and normalises it."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

MEAN = STD = 0.5  # ViTImageProcessor's


def labelled_files(part: Path) -> tuple[list[tuple[Path, int]], list[str]]:
    """The files of `part`/<class>/ with their class numbers, and the classes in order."""
    classes = sorted(folder.name for folder in part.iterdir() if folder.is_dir())
    files = [(path, number) for number, name in enumerate(classes) for path in sorted((part / name).iterdir())]
    return files, classes


def random_resized_crop(image: Image.Image, size: int, smallest: float = 0.35) -> Image.Image:
    """As torchvision's: a part of `smallest` to all of the area, aspect 3/4 to 4/3, ten tries."""
    width, height = image.size
    for _ in range(10):
        area = width * height * random.uniform(smallest, 1)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + w, top + h))
    return image.resize((size, size), Image.Resampling.BILINEAR)


def random_flip(image: Image.Image) -> Image.Image:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


def to_tensor(image: Image.Image) -> Tensor:
    """(3, H, W), normalised."""
    values = (np.asarray(image, dtype=np.float32) / 255 - MEAN) / STD
    return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1)))


class Pictures(Dataset[dict[str, Any]]):
    def __init__(self, part: Path, size: int) -> None:
        self.files, self.classes = labelled_files(part)
        self.size = size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path, label = self.files[index]
        with Image.open(path) as file:
            image = file.convert("RGB")
        return {"pixel_values": to_tensor(random_flip(random_resized_crop(image, self.size))), "labels": label}
