"""The pile of a run: pictures without labels, from any folder, that join the images with labels."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from vitrail.data.loading.cache import CacheSubset, open_cache
from vitrail.data.loading.split import digest_files
from vitrail.data.loading.unlabelled_loader import Pile
from vitrail.errors import VitrailError
from vitrail.images.listing import scan
from vitrail.images.stored_image import StoredImage
from vitrail.text import counted, shown
from vitrail.training.run_context import Run
from vitrail.training.stages.decode_images import HELD_OUT, TrainingImages
from vitrail.training.stages.image_statistics import cached_shape


def add_unlabelled(run: Run, images: TrainingImages) -> TrainingImages:
    """The images with the pile that the settings name beside them; as they are, where these name none."""
    pile = read_unlabelled(run, images)
    if pile is None:
        return images
    how = "the teacher's answers about them" if images.settings.train.teacher else "hidden patches, which are painted"
    run.progress.say(f"without labels: {pile.description}; learnt by {how}")
    return replace(images, pile=pile)


def read_unlabelled(run: Run, images: TrainingImages) -> Pile | None:
    """The pile that the settings name, decoded once; None: they name none. Every process reads it.

    Copies of held-out images are left out: a model that was shown them, even without labels, is not measured by them.
    """
    options = images.settings.data
    if options.unlabelled is None:
        return None
    found = pictures_below(Path(options.unlabelled))
    held_out = [item.source for split in HELD_OUT for item in images.data.dataset.part(split)]
    copies = copies_of(held_out, found)
    paths = [path for path in found if path not in copies]
    cache = open_cache(
        paths,
        cached_shape(images.data.sizes, images.preprocessing),
        options.cache,
        options.cache_gigabytes / run.processes.world,
        options.workers,
        run.progress.counter("decoding images without labels"),
    )
    broken, count = cache.broken, len(paths) - len(cache.broken)
    if broken:
        run.progress.say(f"  warning: {next(iter(broken.values()))}; left out, {counted(len(broken), 'file')} in all")
        cache = CacheSubset(cache, len(paths), broken)
    if count < run.processes.world * max(2, images.settings.train.accumulate):  # every part of a step has some
        raise VitrailError(f"{shown(options.unlabelled)}: {counted(count, 'picture')} to learn from are too few")
    left_out = f", {counted(len(copies), 'copy', 'copies')} of held-out images left out" if copies else ""
    description = f"{counted(count, 'picture')} of {shown(options.unlabelled)}{left_out}"
    return Pile(cache, count, fingerprint_of(paths, Path(options.unlabelled)), description)


def pictures_below(folder: Path) -> list[Path]:
    """The images of a folder and of all folders in it, whatever these are called."""
    images = scan(folder).images
    if not images:
        raise VitrailError(f"--unlabelled {shown(folder)} holds no images")
    return images


def copies_of(images: Collection[Path | StoredImage], among: Sequence[Path]) -> set[Path]:
    """Which of `among` have the bytes of one of these images. Of files only those of the same length are read."""
    lengths = {image.stat().st_size for image in images if isinstance(image, Path)}
    unknown = any(isinstance(image, StoredImage) for image in images)
    alike = [path for path in among if unknown or path.stat().st_size in lengths]
    known = set(digest_files(list(images))) if alike else set()
    return {path for path, digest in zip(alike, digest_files(alike), strict=True) if digest in known}


def fingerprint_of(paths: Sequence[Path], folder: Path) -> str:
    """Of the files' names and bytes: another one when a file is added, taken away or changed for another."""
    digests = digest_files(paths)
    rows = [f"{path.relative_to(folder).as_posix()} {own.hex()}" for path, own in zip(paths, digests, strict=True)]
    return hashlib.sha256("\n".join(rows).encode(errors="surrogateescape")).hexdigest()[:32]
