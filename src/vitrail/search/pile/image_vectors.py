"""One vector for each of a command's images: from a file of `vitrail embed`, or computed, with a bar to wait by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitrail.errors import VitrailError
from vitrail.inference.engine import Engine
from vitrail.progress import ProgressBar
from vitrail.search.embeddings import Embedder, Vectors, embed_all
from vitrail.search.vector_file import file_digest, read_columns, read_facts, rows_of
from vitrail.text import counted, shown
from vitrail.threads import in_threads
from vitrail.weights.checkpoint import Checkpoint


class ImageVectors(NamedTuple):
    """Of the images that could be read."""

    vectors: Vectors  # (n, D)
    places: list[int]  # (n,), theirs among the paths
    unreadable: list[dict[str, str]]  # image and error of each of the others


def open_embedder(
    model: str | Path | Checkpoint | Engine, embeddings: str | Path | None = None, **options: Any
) -> Embedder:
    """One vector an image. embeddings: a file of `vitrail embed`, whose kind of vector is made; another model's is
    refused. options: as `Embedder` takes them."""
    if embeddings is None:
        return Embedder(model, **options)
    facts = read_facts(Path(embeddings))
    if facts.grid is not None:
        raise VitrailError(
            f"{shown(embeddings)} has a vector for every patch, and one an image is needed: embed with another --what"
        )
    embedder = Embedder(model, what=facts.what, normalise=facts.normalise, **options)
    if embedder.fingerprint != facts.fingerprint:
        raise VitrailError(
            f"the vectors of {shown(embeddings)} were made by another model, {shown(facts.model)}, or other settings "
            "of it: give that model, or embed again"
        )
    return embedder


def image_vectors(
    embedder: Embedder, paths: Sequence[Path], embeddings: str | Path | None = None, quiet: bool = False
) -> ImageVectors:
    """The vectors of the images that can be read; VitrailError where none can. Those of images with the very bytes of
    one in the file `embeddings` are taken from it, whatever the image is called."""
    found = {} if embeddings is None else _kept(embeddings, paths, quiet)
    missing = [place for place in range(len(paths)) if place not in found]
    with ProgressBar("embedding", len(missing), enabled=not quiet) as bar:
        computed, places, errors = embed_all(embedder, _counted([paths[place] for place in missing], bar))
    found |= {missing[place]: vector for place, vector in zip(places, computed, strict=True)}
    if not found:
        why = f", the first because it {errors[0].why}" if errors else ""
        raise VitrailError(f"none of {counted(len(paths), 'image')} could be read{why}")
    order = sorted(found)
    vectors = np.stack([found[place] for place in order])
    return ImageVectors(vectors, order, [{"image": error.name, "error": str(error)} for error in errors])


def _kept(embeddings: str | Path, paths: Sequence[Path], quiet: bool) -> dict[int, Vectors]:
    """The vectors that the file has for these images, by their places."""
    table = read_columns(Path(embeddings), ["id", "path", "digest", "vector", "error"])
    vector_of = {row.digest: row.vector for row in rows_of(table) if row.vector is not None}
    with ProgressBar("comparing with the file", len(paths), enabled=not quiet) as bar:
        digests = in_threads(file_digest, paths, progress=bar.update)
    return {place: vector_of[own] for place, own in enumerate(digests) if isinstance(own, str) and own in vector_of}


def _counted(paths: Sequence[Path], bar: ProgressBar) -> Iterator[Path]:
    for path in paths:
        yield path
        bar.step()
