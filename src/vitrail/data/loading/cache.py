"""Decoded images for training, each squashed as a whole to one size: kept in memory, in a shared file, or not at all.

An image's own height and width are kept beside it, so that a crop can restore its aspect (see augment.py).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.loading.transforms import resize
from vitrail.files import DAY, cache_folder, map_array, remove_unfinished, replacing
from vitrail.images.decode import read_image
from vitrail.images.stored_image import StoredImage
from vitrail.images.unreadable import UnreadableImage
from vitrail.progress import Progress
from vitrail.storage import version_of
from vitrail.text import shown
from vitrail.threads import in_threads

Source: TypeAlias = Path | StoredImage


@dataclass(frozen=True)
class Shape:
    """The shape of every cached image."""

    height: int
    width: int
    channels: int
    exact: bool = False  # whether the images' own sizes are needed to the pixel, not only their aspects
    bits: int | None = None  # in use of images with more than 8 (see Preprocessing)

    @property
    def bytes(self) -> int:
        """The bytes that one image takes."""
        return self.height * self.width * self.channels


class ImageCache(Protocol):
    """Images by their index in the list of sources."""

    broken: dict[int, UnreadableImage]  # the indices that hold no image

    def take(self, indices: NDArray[np.int64]) -> tuple[Tensor, NDArray[np.int64]]:
        """uint8 (B, H, W, C), and the images' own sizes (B, 2)."""
        ...


def read_squashed(source: Source, shape: Shape) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """One image resized to the cached size, and its own height and width."""
    target = None if shape.exact else (shape.height, shape.width)
    pixels = read_image(source, shape.channels, target=target, bits=shape.bits)
    size = pixels.shape[0], pixels.shape[1]  # a JPEG may be decoded at reduced scale: only the aspect is needed then
    return resize(pixels, (shape.height, shape.width), "bilinear"), size


class NoCache:
    """Decodes images each time they are taken, so memory stays flat however many there are."""

    def __init__(self, sources: Sequence[Source], shape: Shape, workers: int = 2) -> None:
        self.sources, self.shape, self.workers = sources, shape, workers
        self.broken: dict[int, UnreadableImage] = {}

    def find_broken(self, progress: Progress | None = None) -> NoCache:
        """Decode every image once, so that broken ones are known before a long run begins."""
        _, self.broken = _read_sizes(
            lambda index: read_squashed(self.sources[index], self.shape)[1], self.sources, self.workers, progress
        )
        return self

    def take(self, indices: NDArray[np.int64]) -> tuple[Tensor, NDArray[np.int64]]:
        """uint8 (B, H, W, C) and the images' own sizes (B, 2), decoded now."""
        sources = [self.sources[index] for index in indices.tolist()]
        images = in_threads(lambda source: read_squashed(source, self.shape), sources, max(1, self.workers))
        return torch.from_numpy(np.stack([pixels for pixels, _ in images])), np.array([size for _, size in images])


class ArrayCache:
    """Every image in one array, in memory or mapped from a file: (count, H, W, C), and sizes (count, 2)."""

    def __init__(
        self,
        pixels: NDArray[np.uint8],
        sizes: NDArray[np.int64],
        broken: dict[int, UnreadableImage],
        notes: Sequence[str] = (),
    ) -> None:
        self.pixels, self.sizes, self.broken = pixels, sizes, broken
        self.notes = notes  # what was wrong with the file, a sentence each

    def take(self, indices: NDArray[np.int64]) -> tuple[Tensor, NDArray[np.int64]]:
        """uint8 (B, H, W, C) and the images' own sizes (B, 2), copied from the array."""
        return torch.from_numpy(self.pixels[indices]), self.sizes[indices]


class CacheSubset:
    """A cache without some of its indices, such as those of broken images: the others move up."""

    def __init__(self, cache: ImageCache, count: int, without: Collection[int]) -> None:
        self.cache = cache
        self.broken: dict[int, UnreadableImage] = {}
        self.indices = np.array([index for index in range(count) if index not in without], dtype=np.int64)

    def take(self, indices: NDArray[np.int64]) -> tuple[Tensor, NDArray[np.int64]]:
        """uint8 (B, H, W, C) and the images' own sizes (B, 2), by indices after the others moved up."""
        return self.cache.take(self.indices[indices])


def open_cache(
    sources: Sequence[Source],
    shape: Shape,
    mode: str | None = None,
    gigabytes: float = 4.0,
    workers: int = 2,
    progress: Progress | None = None,
) -> ImageCache:
    """`mode` is memory, disk or off. None: in memory what fits into so many gigabytes, else on disk where it takes at
    most half of the free space, else off."""
    needed = len(sources) * shape.bytes
    if mode == "memory" or (mode is None and fits_in_memory(needed, gigabytes)):
        return keep_in_memory(sources, shape, workers, progress)
    if mode == "disk" or (mode is None and needed <= _free_disk(cache_folder()) / 2):
        return keep_in_file(sources, shape, cache_folder(), workers, progress)
    return NoCache(sources, shape, workers).find_broken(progress)


def fits_in_memory(needed: int, gigabytes: float) -> bool:
    """Whether so many bytes may be kept, where so many gigabytes are allowed."""
    return needed <= min(gigabytes * 1e9, physical_memory() / 4)


def keep_in_memory(
    sources: Sequence[Source], shape: Shape, workers: int, progress: Progress | None = None
) -> ArrayCache:
    """Decode all images now, into one array in memory."""
    pixels = np.empty((len(sources), shape.height, shape.width, shape.channels), dtype=np.uint8)
    return ArrayCache(pixels, *_fill(pixels, sources, shape, workers, progress))


def keep_in_file(
    sources: Sequence[Source], shape: Shape, folder: Path, workers: int, progress: Progress | None = None
) -> ArrayCache:
    """Mapped from a file that other runs on the same data share. Two runs that start at once each write it, and the
    last one's stays."""
    target = folder / f"{_key(sources, shape)}.npy"
    sizes = target.with_suffix(".sizes.npy")
    dims = (len(sources), shape.height, shape.width, shape.channels)
    notes = []
    for file in (target, sizes):
        if file.exists() and not _is_whole(file, dims):
            notes.append(f"{shown(file)} is damaged or cut short: the images are decoded again")
            file.unlink()
    if not (target.exists() and sizes.exists()):
        remove_unfinished(folder, seconds=DAY)  # they are as large as the cache, also those of other data
        with replacing(target) as temporary:
            mapped = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=dims)
            _reserve(temporary)
            own, _ = _fill(mapped, sources, shape, workers, progress)
            mapped.flush()
        with replacing(sizes) as temporary, temporary.open("wb") as stream:
            np.save(stream, own)
    image_sizes = np.load(sizes)
    broken = {index: _problem(sources[index], shape) for index in np.flatnonzero(image_sizes[:, 0] == 0).tolist()}
    return ArrayCache(np.load(target, mmap_mode="r"), image_sizes, broken, notes)


def _is_whole(file: Path, dims: tuple[int, ...]) -> bool:
    """Whether a file of the cache holds what its name promises: pixels (count, H, W, C), or sizes (count, 2)."""
    expected = ((dims[0], 2), np.int64) if file.name.endswith(".sizes.npy") else (dims, np.uint8)
    array = map_array(file)
    return array is not None and (array.shape, array.dtype) == expected


def _free_disk(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def physical_memory() -> float:
    """The machine's memory in bytes; infinity where the system does not say."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def _key(sources: Sequence[Source], shape: Shape) -> str:
    """A hash of the paths, sizes and times of the files: another one when any of them changes."""
    key = hashlib.sha256(repr(shape).encode())
    holders: dict[str, str] = {}  # the files that hold many images are looked at once
    for source in sources:
        if isinstance(source, StoredImage):
            if source.holder not in holders:
                holders[source.holder] = version_of(source.holder)
            facts = f"{source!r}\0{holders[source.holder]}\n"
        else:
            facts = _file_facts(source)
        key.update(facts.encode(errors="surrogateescape"))
    return key.hexdigest()[:32]


def _file_facts(path: Path) -> str:
    try:
        stat = path.stat()
        return f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\n"
    except OSError:
        return f"{path}\0gone\n"


def _reserve(file: Path) -> None:
    """The mapped file is sparse: a disk that fills up later would end the process without a word, so it fills here."""
    if hasattr(os, "posix_fallocate"):
        with file.open("rb+") as opened:
            os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)


def _problem(source: Source, shape: Shape) -> UnreadableImage:
    try:
        read_squashed(source, shape)
    except UnreadableImage as error:
        return error
    return UnreadableImage(str(source), "damaged", "could not be read when the cache was filled: save it anew")


def _fill(
    pixels: NDArray[np.uint8], sources: Sequence[Source], shape: Shape, workers: int, progress: Progress | None
) -> tuple[NDArray[np.int64], dict[int, UnreadableImage]]:
    def fill(index: int) -> tuple[int, int]:
        pixels[index], size = read_squashed(sources[index], shape)
        return size

    return _read_sizes(fill, sources, workers, progress)


def _read_sizes(
    read: Callable[[int], tuple[int, int]], sources: Sequence[Source], workers: int, progress: Progress | None
) -> tuple[NDArray[np.int64], dict[int, UnreadableImage]]:
    """The size that `read` gives for each index, (count, 2), and the errors by index; a broken image has size 0."""
    broken: dict[int, UnreadableImage] = {}

    def try_reading(index: int) -> tuple[int, int]:
        try:
            return read(index)
        except UnreadableImage as error:
            broken[index] = error
            return 0, 0

    sizes = in_threads(try_reading, range(len(sources)), max(1, workers), progress)
    return np.array(sizes, dtype=np.int64).reshape(-1, 2), dict(sorted(broken.items()))
