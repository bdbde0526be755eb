"""Decoded pictures for training, each as a whole squashed to one size: in memory, in a shared file, or decoded anew.

A picture keeps its own height and width beside it, so that a crop can give back its aspect (see augment.py).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Sequence
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
from vitrail.files import replacing


@dataclass(frozen=True)
class Shape:
    """What every stored picture has: height, width, channels."""

    height: int
    width: int
    channels: int
    exact: bool = False  # whether the pictures' own sizes are asked for to the pixel, not only their aspects

    @property
    def bytes(self) -> int:
        return self.height * self.width * self.channels


class Store(Protocol):
    """Pictures by their place in the list of paths."""

    broken: dict[int, UnreadableImage]  # the places that hold no picture

    def take(self, places: NDArray[np.int64]) -> tuple[Tensor, NDArray[np.int64]]:
        """uint8 (B, H, W, C), and the pictures' own sizes (B, 2)."""
        ...


def squashed(path: Path, shape: Shape) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """One picture at the stored size, and its own height and width."""
    pixels = read_image(path, shape.channels, target=None if shape.exact else (shape.height, shape.width))
    size = pixels.shape[0], pixels.shape[1]  # of a JPEG decoded at reduced scale: the aspect is what counts
    return resize(pixels, (shape.height, shape.width), "bilinear"), size


class Decoding:
    """Keeps nothing: memory stays flat however many pictures there are."""

    def __init__(self, paths: Sequence[Path], shape: Shape, workers: int = 2) -> None:
        self.paths, self.shape, self.workers = paths, shape, workers
        self.broken: dict[int, UnreadableImage] = {}

    def look(self, progress: Progress | None = None) -> Decoding:
        """Decode everything once, to know what is broken before a long run begins."""
        _, self.broken = _sizes(
            lambda place: squashed(self.paths[place], self.shape)[1], self.paths, self.workers, progress
        )
        return self

    def take(self, places: NDArray[np.int64]) -> tuple[Tensor, NDArray[np.int64]]:
        chosen = [self.paths[place] for place in places]
        found = in_threads(lambda path: squashed(path, self.shape), chosen, max(1, self.workers))
        return torch.from_numpy(np.stack([f[0] for f in found])), np.array([f[1] for f in found])


class Kept:
    """Keeps every picture, decoded once."""

    def __init__(self, pixels: NDArray[np.uint8], sizes: NDArray[np.int64], broken: dict[int, UnreadableImage]) -> None:
        self.pixels, self.sizes, self.broken = pixels, sizes, broken

    def take(self, places: NDArray[np.int64]) -> tuple[Tensor, NDArray[np.int64]]:
        return torch.from_numpy(self.pixels[places]), self.sizes[places]


class Whole:
    """A store without the places that nothing can be learnt from: the others move up."""

    def __init__(self, store: Store, count: int, without: Collection[int]) -> None:
        self.store = store
        self.broken: dict[int, UnreadableImage] = {}
        self.places = np.array([place for place in range(count) if place not in without], dtype=np.int64)

    def take(self, places: NDArray[np.int64]) -> tuple[Tensor, NDArray[np.int64]]:
        return self.store.take(self.places[places])


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
    if cache == "memory" or (cache == "auto" and needed <= min(gigabytes * 1e9, physical_memory() / 4)):
        return keep_in_memory(paths, shape, workers, progress)
    if cache == "disk" or (cache == "auto" and needed <= _free_disk(cache_folder()) / 2):
        return keep_in_file(paths, shape, cache_folder(), workers, progress)
    return Decoding(paths, shape, workers).look(progress)


def keep_in_memory(paths: Sequence[Path], shape: Shape, workers: int, progress: Progress | None = None) -> Kept:
    pixels = np.empty((len(paths), shape.height, shape.width, shape.channels), dtype=np.uint8)
    return Kept(pixels, *_fill(pixels, paths, shape, workers, progress))


def keep_in_file(
    paths: Sequence[Path], shape: Shape, folder: Path, workers: int, progress: Progress | None = None
) -> Kept:
    """Mapped from a file that other runs on the same data share. Two that start at once each write, and one stays."""
    target = folder / f"{_key(paths, shape)}.npy"
    sizes = target.with_suffix(".sizes.npy")
    dims = (len(paths), shape.height, shape.width, shape.channels)
    if not (target.exists() and sizes.exists()):
        with replacing(target) as temporary:
            mapped = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=dims)
            _reserve(temporary)
            own, _ = _fill(mapped, paths, shape, workers, progress)
            mapped.flush()
        with replacing(sizes) as temporary, temporary.open("wb") as file:
            np.save(file, own)
    known = np.load(sizes)
    broken = {place: _problem(paths[place], shape) for place in np.flatnonzero(known[:, 0] == 0).tolist()}
    return Kept(np.load(target, mmap_mode="r"), known, broken)


def cache_folder() -> Path:
    """Where decoded pictures are kept: `VITRAIL_CACHE`, else the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("VITRAIL_CACHE") or Path(base) / "vitrail")


def _free_disk(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def physical_memory() -> float:
    """Bytes; endless where the system does not tell."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def _key(paths: Sequence[Path], shape: Shape) -> str:
    """Of the files as they are now: one that changes has another."""
    key = hashlib.sha256(repr(shape).encode())
    for path in paths:
        try:
            seen = path.stat()
            facts = f"{path.resolve()}\0{seen.st_size}\0{seen.st_mtime_ns}\n"
        except OSError:
            facts = f"{path}\0gone\n"
        key.update(facts.encode(errors="surrogateescape"))
    return key.hexdigest()[:32]


def _reserve(file: Path) -> None:
    """The mapped file is sparse: a disk that fills up later would end the process without a word, so it fills here."""
    if hasattr(os, "posix_fallocate"):
        with file.open("rb+") as opened:
            os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)


def _problem(path: Path, shape: Shape) -> UnreadableImage:
    try:
        squashed(path, shape)
    except UnreadableImage as error:
        return error
    return UnreadableImage(str(path), "damaged", "could not be read when the cache was filled: save it anew")


def _fill(
    pixels: NDArray[np.uint8], paths: Sequence[Path], shape: Shape, workers: int, progress: Progress | None
) -> tuple[NDArray[np.int64], dict[int, UnreadableImage]]:
    def put(place: int) -> tuple[int, int]:
        pixels[place], size = squashed(paths[place], shape)
        return size

    return _sizes(put, paths, workers, progress)


def _sizes(
    work: Callable[[int], tuple[int, int]], paths: Sequence[Path], workers: int, progress: Progress | None
) -> tuple[NDArray[np.int64], dict[int, UnreadableImage]]:
    """What `work` says of each place: its picture's size, or why there is none (size 0)."""
    broken: dict[int, UnreadableImage] = {}

    def tried(place: int) -> tuple[int, int]:
        try:
            return work(place)
        except UnreadableImage as error:
            broken[place] = error
            return 0, 0

    sizes = in_threads(tried, range(len(paths)), max(1, workers), progress)
    return np.array(sizes, dtype=np.int64).reshape(-1, 2), dict(sorted(broken.items()))
