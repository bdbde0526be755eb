"""The index that is served with a model: what is most like a picture, in the newest generation on disk."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from vitrail.errors import VitrailError
from vitrail.inference.engine import Engine
from vitrail.inference.image_processor import ModelInput, Pixels
from vitrail.search.embeddings import Embedder, Vectors, normalised
from vitrail.search.index.image_index import ImageIndex, Neighbour
from vitrail.search.index.index_manifest import read_manifest
from vitrail.text import shown


class ServedIndex:
    """Its methods run in several threads. Whoever writes to the index meanwhile is noticed at the next search."""

    def __init__(self, folder: str | Path, engine: Engine) -> None:
        self.folder = Path(folder)
        self._lock = threading.Lock()
        self._index = ImageIndex(self.folder)
        facts = self._index.manifest.facts
        self.fingerprint = facts.fingerprint
        self._embedder = Embedder(engine, what=facts.what, normalise=facts.normalise)
        if self._embedder.fingerprint != facts.fingerprint:
            raise VitrailError(
                f"the index {shown(self.folder)} was made with another model, {shown(facts.model)}: serve that one, or "
                "make an index with this one"
            )

    def __len__(self) -> int:
        return len(self._index)

    @property
    def index(self) -> ImageIndex:
        """The newest generation. One that cannot be read, or is of another model now, is not taken."""
        with self._lock:
            try:
                newest = read_manifest(self.folder)
                if newest != self._index.manifest and newest.facts.fingerprint == self.fingerprint:
                    self._index = ImageIndex(self.folder)
            except VitrailError:
                pass  # a disk that is gone for a moment: what is open is still right
            return self._index

    def embed(self, pixels: Pixels) -> Vectors:
        """(D,) of a picture (h, w, C) at the model's size. In the model's thread."""
        [vector] = self._embedder.engine.outputs([ModelInput(pixels)])
        values: Vectors = vector.float().numpy()
        return np.array(normalised(values))

    def like_vector(self, vector: Vectors, top: int) -> list[Neighbour]:
        """The pictures nearest to a vector (D,), best first."""
        return self.index.neighbours(vector[None], top)[0]

    def like_id(self, id_: int, top: int) -> list[Neighbour]:
        """The pictures nearest to one of the index, itself first; VitrailError for an id that is not there."""
        index = self.index
        return index.neighbours(index.vector(id_)[None], top)[0]

    def read_file(self, id_: int, most_bytes: int) -> tuple[str, bytes]:
        """Name and bytes of a picture of the index, and of no other file; VitrailError where it is not there."""
        path = Path(self.index.path(id_))
        try:
            if not path.is_file():  # it may have become a pipe, which would be waited for
                raise OSError
            with path.open("rb") as file:
                data = file.read(most_bytes + 1)
        except OSError:
            raise VitrailError("the file of this picture is not there any more") from None
        if len(data) > most_bytes:
            raise VitrailError(f"the file of this picture has more than {most_bytes:,} bytes")
        return path.name, data
