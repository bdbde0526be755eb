"""A model that has learned to tell shapes in clutter apart: where the evidence is, is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT

SIDE, PATCH, SHAPE = 32, 4, 12  # pixels
CLASSES = ("bars", "stripes", "checks")


@dataclass
class Scenes:
    images: Tensor  # (B, 3, 32, 32)
    classes: Tensor  # (B,)
    inside: Tensor  # bool (B, 8, 8): patches that hold a part of the shape


def scenes(count: int, seed: int) -> Scenes:
    """One shape of 12 px, whose pattern is its class, somewhere among rectangles of random greys and colours."""
    rng = np.random.default_rng(seed)
    images = np.zeros((count, SIDE, SIDE, 3), np.float32)
    inside = np.zeros((count, SIDE // PATCH, SIDE // PATCH), bool)
    classes = rng.integers(0, 3, count)
    rows, columns = np.mgrid[:SHAPE, :SHAPE] // 2 % 2
    patterns = np.stack([rows, columns, rows ^ columns])
    for image, mask, kind in zip(images, inside, classes, strict=True):
        image[:] = rng.uniform(-0.5, 0.5, 3)
        for _ in range(12):
            (top, left), (height, width) = rng.integers(0, SIDE, 2), rng.integers(3, 14, 2)
            image[top : top + height, left : left + width] = rng.uniform(-1, 1, 3)
        top, left = PATCH * rng.integers(0, (SIDE - SHAPE) // PATCH + 1, 2)  # learned in seconds, being on the grid
        colours = rng.uniform(0.3, 1, (2, 3)) * [[1], [-1]]
        image[top : top + SHAPE, left : left + SHAPE] = colours[patterns[kind]]
        mask[top // PATCH : (top + SHAPE) // PATCH, left // PATCH : (left + SHAPE) // PATCH] = True
    return Scenes(torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(classes), torch.from_numpy(inside))


def trained(steps: int = 120, **changes: object) -> ViT:
    """A few seconds on one core."""
    settings = {"width": 32, "depth": 3, "heads": 2, "classes": 3, "positions": "sincos2d", **changes}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ViT(ViTConfig(image_size=SIDE, patch_size=PATCH, **settings)).train()  # type: ignore[arg-type]
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
        data = scenes(2048, seed=1)
        for step in range(steps):
            some = torch.arange(64 * step, 64 * step + 64) % 2048
            loss = F.cross_entropy(model(data.images[some]), data.classes[some])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same random images every time."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def seeing() -> ViT:
    """Reads [CLS]."""
    return trained()


@pytest.fixture(scope="session")
def averaging() -> ViT:
    """Reads the mean of the patches, and has no [CLS]."""
    return trained(cls_token=False, pool="mean")


@pytest.fixture(scope="session")
def unseen() -> Scenes:
    return scenes(24, seed=2)


class Largest(TorchDispatchMode):
    """The largest tensor that anything gave."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = function(*args, **(kwargs or {}))
        for one in given if isinstance(given, tuple | list) else [given]:
            if isinstance(one, torch.Tensor):
                self.entries = max(self.entries, one.numel())
        return given


@pytest.fixture
def largest() -> Largest:
    return Largest()
