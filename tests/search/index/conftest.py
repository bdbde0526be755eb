"""The pictures and the model of the tests of search."""

from tests.search.conftest import embedder, facts, float32, model_file, photos, picture, pile, save

__all__ = ["embedder", "facts", "float32", "model_file", "photos", "picture", "pile", "save"]
