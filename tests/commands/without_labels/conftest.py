"""The models and pictures of the tests of search."""

from tests.search.conftest import float32, model_file, photos, picture, pile, save

__all__ = ["float32", "model_file", "photos", "picture", "pile", "save"]
