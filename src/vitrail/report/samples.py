"""A few held-out pictures beside the model, for whoever wants to try it: `vitrail serve` offers them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from vitrail.dataset import Item
from vitrail.files import replacing
from vitrail.images.decode import UnreadableImage, read_image

SAMPLES = 8
SIDE = 640  # pixels of the longer side at most


def write_samples(items: Sequence[Item], labels: Sequence[str], folder: Path, bits: int | None = None) -> None:
    """Of as many classes as possible, in small, as JPEG: the pictures themselves stay where they are. bits: with which
    the model reads them."""
    folder.mkdir(exist_ok=True)
    for number, item in enumerate(spread(items), start=1):
        try:
            image = Image.fromarray(read_image(item.source, 3, bits=bits))
        except UnreadableImage:
            continue
        image.thumbnail((SIDE, SIDE))
        classes = sorted({labels[label] for label in item.classes()})
        name = "-".join([str(number), *classes])[:40]
        with replacing(folder / f"{re.sub(r'[^A-Za-z0-9_-]+', '_', name)}.jpg") as temporary:
            image.save(temporary, "JPEG", quality=90)


def spread(items: Sequence[Item]) -> list[Item]:
    """Those with a class that none before them had; then others, evenly."""
    seen: set[int] = set()
    first = []
    for item in items:
        if set(item.classes()) - seen:
            first.append(item)
            seen |= set(item.classes())
    chosen = first[:SAMPLES]
    rest = [item for item in items if item not in chosen]
    missing = SAMPLES - len(chosen)
    return chosen + rest[:: max(1, len(rest) // missing)][:missing] if missing > 0 else chosen
