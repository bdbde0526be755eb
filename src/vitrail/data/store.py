"""Decoded pictures for training, each as a whole squashed to one size: in memory, in a shared file, or decoded anew.

A picture keeps its own height and width beside it, so that a crop can give back its aspect (see augment.py).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.images import read_image
from vitrail.data.inputs import resize
from vitrail.data.threads import Progress, in_threads
from vitrail.data.unreadable import UnreadableImage
from vitrail.errors import VitrailError
from vitrail.files import replacing


@dataclass(frozen=True)
class Shape:
    """What every stored picture has: height, width, channels."""

    height: int
    width: int
    channels: int

    @property
    def bytes(self) -> int:
        return self.height * self.width * self.channels


class Store(Protocol):
    """Pictures by their place in the list of paths."""

    def take(self, places: NDArray[np.int64]) -> tuple[Tensor, NDArray[np.int64]]:
        """uint8 (B, H, W, C), and the pictures' own sizes (B, 2)."""
        ...


def squashed(path: Path, shape: Shape) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """One picture at the stored size, and its own height and width."""
    pixels = read_image(path, shape.channels, target=(shape.height, shape.width))
    size = pixels.shape[0], pixels.shape[1]  # of a JPEG decoded at reduced scale: the aspect is what counts
    return resize(pixels, (shape.height, shape.width), "bilinear"), size


class Decoding:
    """Keeps nothing: memory stays flat however many pictures there are."""

    def __init__(self, paths: Sequence[Path], shape: Shape, workers: int = 2) -> None:
        self.paths, self.shape, self.workers = paths, shape, workers

    def take(self, places: NDArray[np.int64]) -> tuple[Tensor, NDArray[np.int64]]:
        chosen = [self.paths[place] for place in places]
        found = in_threads(lambda path: squashed(path, self.shape), chosen, max(1, self.workers))
        return torch.from_numpy(np.stack([f[0] for f in found])), np.array([f[1] for f in found])


class Kept:
    """Keeps every picture, decoded once."""

    def __init__(self, pixels: NDArray[np.uint8], sizes: NDArray[np.int64]) -> None:
        self.pixels, self.sizes = pixels, sizes

    def take(self, places: NDArray[np.int64]) -> tuple[Tensor, NDArray[np.int64]]:
        return torch.from_numpy(self.pixels[places]), self.sizes[places]


def open_store(
    paths: Sequence[Path],
    shape: Shape,
    cache: str = "auto",
    gigabytes: float = 4.0,
    workers: int = 2,
    progress: Progress | None = None,
) -> Store:
    """As `cache` says: memory, disk, off; auto keeps in memory what fits into so many gigabytes, else on disk where it
    takes at most half of what is free, else decodes anew."""
    needed = len(paths) * shape.bytes
    if cache == "memory" or (cache == "auto" and needed <= gigabytes * 1e9):
        return keep_in_memory(paths, shape, workers, progress)
    if cache == "disk" or (cache == "auto" and needed <= _free_disk(cache_folder()) / 2):
        return keep_in_file(paths, shape, cache_folder(), workers, progress)
    return Decoding(paths, shape, workers)


def keep_in_memory(paths: Sequence[Path], shape: Shape, workers: int, progress: Progress | None = None) -> Kept:
    pixels = np.empty((len(paths), shape.height, shape.width, shape.channels), dtype=np.uint8)
    return Kept(pixels, _fill(pixels, paths, shape, workers, progress))


def keep_in_file(
    paths: Sequence[Path], shape: Shape, folder: Path, workers: int, progress: Progress | None = None
) -> Kept:
    """Mapped from a file that other runs on the same data share. Two that start at once each write, and one stays."""
    key = hashlib.sha256(repr(shape).encode())
    for path in paths:
        seen = path.stat()
        key.update(f"{path.resolve()}\0{seen.st_size}\0{seen.st_mtime_ns}\n".encode(errors="surrogateescape"))
    target = folder / f"{key.hexdigest()[:32]}.npy"
    sizes = target.with_suffix(".sizes.npy")
    dims = (len(paths), shape.height, shape.width, shape.channels)
    if not (target.exists() and sizes.exists()):
        with replacing(target) as temporary:
            mapped = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=dims)
            own = _fill(mapped, paths, shape, workers, progress)
            mapped.flush()
        with replacing(sizes) as temporary, temporary.open("wb") as file:
            np.save(file, own)
    return Kept(np.load(target, mmap_mode="r"), np.load(sizes))


def cache_folder() -> Path:
    """Where decoded pictures are kept: `VITRAIL_CACHE`, else the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("VITRAIL_CACHE") or Path(base) / "vitrail")


def _free_disk(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _fill(
    pixels: NDArray[np.uint8], paths: Sequence[Path], shape: Shape, workers: int, progress: Progress | None
) -> NDArray[np.int64]:
    def put(place: int) -> tuple[int, int]:
        try:
            pixels[place], size = squashed(paths[place], shape)
        except UnreadableImage as error:
            raise VitrailError(f"{error}: it was readable when the run began; mend it or take it out") from None
        return size

    return np.array(in_threads(put, range(len(paths)), max(1, workers), progress), dtype=np.int64).reshape(-1, 2)
