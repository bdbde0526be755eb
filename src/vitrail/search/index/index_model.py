"""The model of an index: found where it was, or where it went, and refused where its vectors would be others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Unpack

from vitrail.errors import VitrailError
from vitrail.inference.running_options import AnsweringOptions
from vitrail.search.embeddings import Embedder
from vitrail.search.index.index_manifest import Manifest
from vitrail.text import shown


def recorded_name(model: str | Path) -> str:
    """What an index calls its model: the absolute path of a file or folder, or a hub id as it is."""
    return os.path.abspath(model) if os.path.exists(model) else str(model)


def open_index_model(
    folder: Path, manifest: Manifest, model: str | Path | None = None, **options: Unpack[AnsweringOptions]
) -> Embedder:
    """The embedder of an index's vectors. model: where it is now; None: where it was when the index was made, or a file
    of the same name beside the index."""
    facts = manifest.facts
    if model is not None:
        embedder = Embedder(model, what=facts.what, normalise=facts.normalise, **options)
        if embedder.fingerprint != facts.fingerprint:
            raise VitrailError(
                f"{shown(str(model))} is not the model of the index {shown(folder)}: its vectors would be others "
                f"(the index was made with {shown(facts.model)})"
            )
        return embedder
    for place in model_places(folder, facts.model):
        embedder = Embedder(place, what=facts.what, normalise=facts.normalise, **options)
        if embedder.fingerprint == facts.fingerprint:
            return embedder
    raise VitrailError(
        f"the model of the index {shown(folder)}, {shown(facts.model)}, is not there any more or has changed: "
        "give it by --model"
    )


def model_places(folder: Path, name: str) -> Iterator[str | Path]:
    """Where a model of this recorded name may be: its own place first."""
    if not os.path.isabs(name):
        yield name  # a published name or a hub id
        return
    for place in dict.fromkeys((Path(name), folder / Path(name).name, folder.parent / Path(name).name)):
        if place.exists():
            yield place
