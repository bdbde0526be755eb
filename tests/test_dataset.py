"""A set of images knows its parts, and looks for them once."""

from __future__ import annotations

from pathlib import Path

from vitrail.dataset import Dataset, Item


def test_parts_are_looked_for_once() -> None:
    """Whoever asks for each image must not make the work quadratic: 70,000 images took 100 of 120 seconds."""
    splits = (None, "val", "train", "test", "val")
    items = tuple(Item(Path(f"{number}.png"), 0, split=split) for number, split in enumerate(splits))
    dataset = Dataset(Path(), "folders", "classify", ("cat",), items)
    assert dataset.part("train") == (items[0], items[2]) and dataset.part("val") == (items[1], items[4])
    assert dataset.part("val") is dataset.part("val") and dataset.part("other") == ()
    fewer = dataset.replace(items=items[:2])
    assert fewer.part("val") == (items[1],) and fewer.part("test") == ()
