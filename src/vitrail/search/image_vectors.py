"""One vector for each of a command's images, with a bar to wait by, and those that could not be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from vitrail.errors import VitrailError
from vitrail.progress import ProgressBar
from vitrail.search.embeddings import Embedder, Vectors, embed_all
from vitrail.text import counted


class ImageVectors(NamedTuple):
    """Of the images that could be read."""

    vectors: Vectors  # (n, D)
    places: list[int]  # (n,), theirs among the paths
    unreadable: list[dict[str, str]]  # image and error of each of the others


def image_vectors(embedder: Embedder, paths: Sequence[Path], quiet: bool = False) -> ImageVectors:
    """VitrailError where none can be read."""
    with ProgressBar("embedding", len(paths), enabled=not quiet) as bar:
        vectors, places, errors = embed_all(embedder, _counted(paths, bar))
    if not places:
        why = f", the first because it {errors[0].why}" if errors else ""
        raise VitrailError(f"none of {counted(len(paths), 'image')} could be read{why}")
    return ImageVectors(vectors, places, [{"image": error.name, "error": str(error)} for error in errors])


def _counted(paths: Sequence[Path], bar: ProgressBar) -> Iterator[Path]:
    for path in paths:
        yield path
        bar.step()
