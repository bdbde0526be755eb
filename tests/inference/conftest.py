"""A small model in its file, and folders of pictures to ask it about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

LABELS = ("cat", "dog", "owl")


@pytest.fixture(autouse=True)
def float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine's processor likes better: the tests compare to the fifth decimal."""
    monkeypatch.setattr("vitrail.model.precision.computes_bf16", lambda device: False)


@pytest.fixture
def save(tmp_path: Path, lively: Callable[..., ViT]) -> Callable[..., Path]:
    """Saves a model of 32 px, and gives its file."""

    def saved(
        labels: Sequence[str] | None = LABELS,
        task: str = "classify",
        name: str = "model.safetensors",
        provenance: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Path:
        config = preset("mu/8", **{"image_size": 32, "classes": len(labels or LABELS)} | changes)
        size = Preprocessing(size=config.image_size, crop_fraction=0.8).for_channels(config.channels)
        names = None if labels is None else list(labels)
        return Checkpoint(lively(config), size, task, names, provenance or {}).save(tmp_path / name)

    return saved


def random_picture(seed: int, size: tuple[int, int] = (40, 48)) -> Image.Image:
    """Large blots, so that no two pictures give the same answer."""
    blots = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(blots).resize((size[1], size[0]), Image.Resampling.BICUBIC)


@pytest.fixture
def picture() -> Callable[..., Image.Image]:
    return random_picture


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """12 pictures, photos/cat/0.png, photos/dog/1.png and so on."""
    root = tmp_path / "photos"
    for number in range(12):
        path = root / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        random_picture(number).save(path)
    return root
