"""Models and pictures of the tests of inference, and an embedder that needs no time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.image_files import photo
from tests.inference.conftest import float32, photos, picture, save
from vitrail.search.embeddings import Embedder
from vitrail.search.vector_file import VectorFacts, facts_of

__all__ = ["embedder", "facts", "float32", "model_file", "photos", "picture", "pile", "save"]


@pytest.fixture
def model_file(save: Callable[..., Path]) -> Path:
    return save()


@pytest.fixture
def embedder(model_file: Path) -> Embedder:
    """As `vitrail index` opens it."""
    return Embedder(model_file, normalise=True)


@pytest.fixture
def facts(embedder: Embedder, model_file: Path) -> VectorFacts:
    return facts_of(embedder, str(model_file))


@pytest.fixture
def pile(tmp_path: Path) -> Path:
    """20 pictures in two folders."""
    folder = tmp_path / "pile"
    for number in range(20):
        path = folder / ("even" if number % 2 == 0 else "odd") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(number).save(path)
    return folder
