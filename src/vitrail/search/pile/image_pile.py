"""A pile of images, labelled or not: whatever DATA is, all that can be looked at in it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrail.data.layouts.layout_names import FOLDERS
from vitrail.data.layouts.recognise import read_dataset, refuse_manifest
from vitrail.dataset import Dataset
from vitrail.errors import VitrailError
from vitrail.inference.sources import images_of
from vitrail.text import counted, shown


@dataclass(frozen=True)
class Pile:
    """Images in their order."""

    root: Path  # what paths are shown relative to
    paths: list[Path]
    classes: NDArray[np.int64] | None = None  # (N,) the class of each, where each has one
    labels: tuple[str, ...] = ()  # names of the classes

    def take(self, places: list[int]) -> Pile:
        """Some of it."""
        classes = None if self.classes is None else self.classes[places]
        return Pile(self.root, [self.paths[place] for place in places], classes, self.labels)


def read_pile(data: str | Path | Dataset, layout: str | None = None, task: str | None = None) -> Pile:
    """Of a data set its images with their classes; of any other folder all images in it, without.

    A folder with images beside its class folders is such a folder too: nothing in a pile is passed over."""
    if isinstance(data, Dataset):
        return pile_of(data)
    refuse_manifest(data)
    path = Path(data)
    if not path.is_dir() or layout is not None or task is not None:
        return pile_of(read_dataset(path, layout=layout, task=task))
    try:
        dataset = read_dataset(path)
    except VitrailError:  # it is no data set to learn from; it need not be
        dataset = None
    if dataset is not None and dataset.layout not in FOLDERS:
        return pile_of(dataset)
    images = [Path(image) for image in images_of(path)]
    if not images:
        raise VitrailError(f"{shown(path)} holds no images")
    return Pile(path, images) if dataset is None or len(dataset.items) < len(images) else pile_of(dataset)


def pile_of(dataset: Dataset) -> Pile:
    """The images of all parts of a data set."""
    paths = [item.path for item in dataset.items]
    targets = [item.target for item in dataset.items]
    if not paths:
        raise VitrailError(f"{shown(dataset.address)} holds no images")
    if not all(isinstance(target, int) for target in targets):
        return Pile(dataset.root, paths)
    return Pile(dataset.root, paths, np.array(targets, np.int64), dataset.labels)


def without(pile: Pile, known: Pile) -> Pile:
    """The images of a pile that are not files of the other one."""
    files = {os.path.abspath(path) for path in known.paths}
    left = [place for place, path in enumerate(pile.paths) if os.path.abspath(path) not in files]
    if not left:
        raise VitrailError(f"all {counted(len(pile.paths), 'image')} of {shown(pile.root)} have a label already")
    return pile.take(left)
